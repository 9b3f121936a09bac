"""Models set side by side: before and after, one variant and another."""
