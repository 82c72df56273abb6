"""What is known about a plant before learning: columns, bounds, history, reward, physics."""
