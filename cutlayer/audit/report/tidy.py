"""A table without its empty columns: a column in which no row has anything to say is left out."""

import re

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_ROW = re.compile(r"(<tr[^>]*>)(.*?)(</tr>)", re.DOTALL)
_CELL = re.compile(r"<t([hd])[^>]*>(.*?)</t\1>", re.DOTALL)
NOTHING = {"", "–"}


def without_empty_columns(page: str) -> str:
    """Tables of our own templates: their cells hold no further tables. Those with cells over several columns stay."""
    return _TABLE.sub(lambda table: _tidied(table[0]), page)


def _tidied(table: str) -> str:
    rows = [list(_CELL.finditer(row[2])) for row in _ROW.finditer(table)]
    columns = len(rows[0]) if rows else 0
    if "span=" in table or any(len(row) != columns for row in rows):
        return table
    body = [row for row in rows if any(cell[1] == "d" for cell in row)]
    empty = {place for place in range(1, columns) if body and all(row[place][2].strip() in NOTHING for row in body)}
    if not empty:
        return table

    def kept(row: re.Match[str]) -> str:
        cells = [cell[0] for place, cell in enumerate(_CELL.finditer(row[2])) if place not in empty]
        return row[1] + "".join(cells) + row[3]

    return _ROW.sub(kept, table)
