"""Tasks with known answers: one file each, all of them seeded and without limit."""
