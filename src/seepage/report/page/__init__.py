"""The report as one self-contained HTML page: its sections, and the parts they share."""
