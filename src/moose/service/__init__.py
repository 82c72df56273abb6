"""A policy behind HTTP, on this machine unless told otherwise."""
