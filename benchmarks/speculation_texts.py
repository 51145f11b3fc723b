"""What speculation is measured on: prompts, and the answers that a model which does as it is told would give.

Random weights answer with noise, which repeats nothing. So the answers are written here, and the benchmark has the
model say them: each token is then as easy to guess as it is in such an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

_TEXT = """The harbour of the old town lies behind a long wall of grey stone. In the morning the boats come back \
with the tide, and by six o'clock the first baskets of fish stand on the quay. The buyers walk along the rows, \
look at the gills, press a thumb into the flesh and name a price. Nobody shouts. A nod is enough, and the clerk \
writes it into a book that has been kept in the same hand for thirty years. When the sun has reached the roof of \
the chapel, the quay is empty again, and only the gulls are left to quarrel over what was dropped. Then the nets \
are washed and hung between the poles to dry. The men who mend them sit on low stools with their backs against \
the wall, and talk about the wind. It comes from the west for most of the year, and brings rain in from the sea. \
In winter it turns to the north, and the boats stay in for weeks at a time. Those are the months in which hulls \
are scraped and painted, engines are taken apart, and the children learn to tie the knots that their \
grandparents were taught on the same steps. A visitor who comes in summer sees little of all this. He finds a \
row of cafés, a museum with a model of the lighthouse, and a shop that sells postcards. But if he gets up early \
enough, he can still stand at the end of the pier and watch the boats come in, one behind the other, each with \
its lamp lit, until there is no more room along the wall."""

_CHANGES = [
    ("grey stone", "red brick"),
    ("six o'clock", "half past five"),
    ("thirty years", "forty years"),
    ("the chapel", "the town hall"),
    ("low stools", "wooden benches"),
    ("hulls are scraped", "keels are scraped"),
    ("a museum with a model of the lighthouse", "a museum with a map of the coast"),
    ("stand at the end of the pier", "sit at the end of the pier"),
]

_CODE = '''class Ledger:
    """Keeps the balance of every account, and the entries that made it."""

    def __init__(self, currency):
        self.currency = currency
        self.entries = []
        self.balances = {}

    def deposit(self, account, amount, note=""):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.entries.append((account, amount, note))
        self.balances[account] = self.balances.get(account, 0) + amount
        return self.balances[account]

    def withdraw(self, account, amount, note=""):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if self.balances.get(account, 0) < amount:
            raise ValueError(f"{account} has too little {self.currency}")
        self.entries.append((account, -amount, note))
        self.balances[account] -= amount
        return self.balances[account]

    def transfer(self, source, target, amount, note=""):
        self.withdraw(source, amount, note)
        self.deposit(target, amount, note)

    def statement(self, account):
        lines = [f"Statement of {account} in {self.currency}"]
        for name, amount, note in self.entries:
            if name == account:
                lines.append(f"{amount:>12,.2f}  {note}")
        lines.append(f"{self.balances.get(account, 0):>12,.2f}")
        return "\\n".join(lines)
'''

_DOCUMENTS = f"""[1] {_TEXT}

[2] The lighthouse at the northern point was built in 1868 from granite that came by barge. Its lamp burned \
rapeseed oil, later paraffin, and since 1957 electricity. The keeper lived on the second floor with his family, \
and a bell in the kitchen rang when the clockwork that turned the lens had to be wound, which was every four \
hours. The last keeper left in 1989. The light can be seen from twenty-two nautical miles away in clear weather, \
and shows two white flashes every fifteen seconds.

[3] Herring was salted here until the shoals stayed away in the twenties. A barrel held between seven hundred \
and eight hundred fish, and a good packer filled three in a day. The salt came from Portugal, the barrels from \
the forests of the east. What was packed in autumn was sold inland until Easter. The salting house is a library \
today.

[4] Tickets for the ferry are sold on board. It leaves every hour from seven in the morning until eight in the \
evening, takes forty minutes to the island, and carries bicycles for a small charge. Dogs travel free of charge. \
In strong westerly winds the service may be suspended at short notice; a red flag at the end of the pier then \
says so."""

_FOUND = """From [2]: "The light can be seen from twenty-two nautical miles away in clear weather, and shows two \
white flashes every fifteen seconds." The tower itself "was built in 1868 from granite that came by barge", and \
its lamp "burned rapeseed oil, later paraffin, and since 1957 electricity".

From [3]: "A barrel held between seven hundred and eight hundred fish, and a good packer filled three in a day. \
The salt came from Portugal, the barrels from the forests of the east."

From [4]: the ferry "leaves every hour from seven in the morning until eight in the evening, takes forty minutes \
to the island, and carries bicycles for a small charge". If the wind is too strong, "a red flag at the end of \
the pier then says so"."""

_FREE = """Bread rises because yeast eats sugar. Flour is mostly starch, and as soon as water reaches it, \
enzymes begin to cut the long chains into pieces small enough for the cells to take in. What they give back is \
alcohol, which evaporates in the oven, and carbon dioxide, which would simply escape if nothing held it. Gluten \
does. Two proteins that lie apart in dry flour join when they are wet and kneaded, forming a net that stretches \
like rubber round every bubble. Too little kneading leaves holes; too much tears what has been built. Warmth \
speeds everything up, up to about forty degrees, beyond which most strains die. Cold slows fermentation without \
stopping it, so many bakers leave their loaves overnight and gain flavour, since acids made by bacteria have \
time to gather. Salt tightens the net and holds yeast back, which is why it goes in late. In the heat, trapped \
gas expands once more, steam joins in, and for ten minutes a loaf grows visibly. Then the proteins set, starch \
swells into jelly, and a crust forms that browns where sugars meet amino acids. Whoever cuts it too early finds \
a damp crumb: inside, water is still moving outwards, and only after an hour has it settled."""


@dataclass(frozen=True)
class Case:
    """One prompt and its answer. `repeats`: whether the answer has much from the prompt."""

    name: str
    prompt: str
    answer: str
    repeats: bool


def _changed(text: str, changes: list[tuple[str, str]]) -> str:
    for old, new in changes:
        assert old in text, f"{old!r} isn't there to be changed"
        text = text.replace(old, new)
    return text


def cases() -> list[Case]:
    """All of them."""
    wanted = "; ".join(f'"{old}" becomes "{new}"' for old, new in _CHANGES)
    renamed = _changed(_CODE, [("balances", "totals"), ("amount must be positive", "the amount must be positive")])
    return [
        Case(
            "editing a text",
            f"{_TEXT}\n\nCopy this text with these changes: {wanted}.\n\n",
            _changed(_TEXT, _CHANGES),
            True,
        ),
        Case("editing code", f"{_CODE}\n\nRename balances to totals.\n\n", renamed, True),
        Case(
            "retrieval", f"{_DOCUMENTS}\n\nQuote what is said of the light, of barrels, of the ferry.\n\n", _FOUND, True
        ),
        Case("free text", "Why does bread rise, and why should it cool before it is cut?\n\n", _FREE, False),
    ]
