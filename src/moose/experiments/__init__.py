"""What people run and look at: runs, grids, tables, pictures, the demonstration."""
