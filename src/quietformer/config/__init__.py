"""What a user can say: specs, registries, options of the verbs, recipes and studies as YAML."""
