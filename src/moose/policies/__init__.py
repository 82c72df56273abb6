"""Policies as people use them: raw history in, raw action out."""
