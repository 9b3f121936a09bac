"""One self-contained HTML page, pictures and a card, all from recorded figures."""
