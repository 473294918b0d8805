"""One self-contained HTML file about recorded runs, and the kit that all pages are made with."""
