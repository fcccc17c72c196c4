"""Draws results: terminal tables, flame graphs, pages."""
