"""What each verb can be told, one file each: the only place for its options, their defaults and their help texts."""
