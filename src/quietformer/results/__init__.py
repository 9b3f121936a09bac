"""Typed, versioned reports: what every workflow returns, every page reads, every JSON file holds."""
