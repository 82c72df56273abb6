"""What a policy is worth: how it is played and how the numbers are told."""
