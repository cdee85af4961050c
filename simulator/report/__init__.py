"""What a run looks like to people: the terminal's table, the plots and one self-contained page.

`terminal` and `page` are light; matplotlib is imported by `plots` only, so import that module when plotting.
"""
