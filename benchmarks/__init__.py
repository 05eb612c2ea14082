"""What was measured, and how: each module writes a file under results/."""
