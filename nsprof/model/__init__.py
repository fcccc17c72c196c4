"""The nouns of nsprof: what every room hands to the next. Imports nothing of nsprof.

`profile` holds what was recorded (immutable, columnar where there is one row a sample), `results` what the
analysis makes of it (and the renderers draw), `scenario` what is to be run.
"""
