"""True plants and the policies that collect data from them; never used for training."""
