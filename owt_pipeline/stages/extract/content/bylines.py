"""The names of people in bylines, without the words around them: `By Ada Fox, Staff Writer`.

Left out are a label before a name (`Text: `, `Reporting by `), and after it a date, a role, a day
of the week, an affiliation or a place. A text with a number, an address, a word of a script or of a
template is not a name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# A byline's date, or a member's number of posts.
_NUMBER = re.compile(r"\b\d{2}")
_BY = re.compile(
    r"^(?:(?:written|posted|published|story|words|article|text|veröffentlicht|verfasst|publié"
    r"|rédigé|publicado|escrito|scritto|geschreven|skrevet|skriven|publicerad)\s+)?"
    r"(?:by|par|por|von)\b:?\s+|^by:"
    r"|^(?:(?:scritto|geschreven|skrevet|skriven|publicerad)\s+)?(?:di|door|av|af)\s+(?=\S+\s+\S)"
    # `Reporting by`, `Guest post by`.
    r"|^(?:[a-z]+\s+){1,2}by:?\s+(?=\S+\s\S)"
    # Labels in scripts without spaces between words, or without a colon.
    r"|^(?:文|撰文|記者|记者|作者|著者|執筆|取材・文)\s*[/／:：]?\s*(?=[\u3040-\u30ff\u4e00-\u9fff])"
    r"|^(?:بقلم|كتب|كتبت|إعداد|מאת)\s*:?\s+|^(?:글|작성자|기자)\s*[:=]?\s+",
    re.IGNORECASE,
)
# A label of any language before a colon. A name has no colon.
_LABEL = re.compile(r"^[^\W\d_]+(?:[ ・][^\W\d_]+){0,2}\s*[:：=]\s*(?=[^\W\d_])")
# Labels and verbs before the name of somebody else than the author, or before something else.
_OTHER_LABEL = re.compile(
    r"^(?:photo|foto|fotó|image|imag|bild|illustration|video|camera|picture|source|quelle|fonte"
    r"|fuente|edit|review|medically|fact|sponsored|translat|curated|date|datum|fecha|updated|last"
    r"|categor|tag|kép|фото|источник|来源|來源|图|圖|摄影|攝影|写真|사진|تصوير)",
    re.IGNORECASE,
)
# The rest of a byline after the name: a date, a count, a separator, an account.
_AFTER_NAME = re.compile(
    r"\s*(?:[|·•/／\n]|\s[-–—]\s|\bon\s|\b(?:last )?updated\b|\bpublished\b|\s@\w"
    r"|(?:,\s*|\s+)(?:(?:le|el|am|den|the|il|em|op|på|vor|um|at)\s+)?"
    r"(?:(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?\s+)?\d).*$",
    re.IGNORECASE | re.DOTALL,
)
# Another label after the name: `Photos: `, `; editing by `.
_NEXT_LABEL = re.compile(
    r"(?:\s(?:edited|reviewed|translated|illustrated|photo\w*)\s+by\s"
    r"|[,;]?\s+[^\W\d_]+\s*[:：](?:\s|$)|\s+[^\W\d_]+：|[,;]\s+[a-z]+\s+by\s)",
    re.IGNORECASE,
)
# A longer text has more than a byline, and anything may be before a colon in it.
_MAX_BYLINE_CHARS = 150
_ROLE_WORDS = (
    r"senior|chief|deputy|managing|contributing|staff|freelance|associate|assistant|guest|executive"
    r"|political|national|foreign|lead|special|former|news|tech|technology|science|health|business"
    r"|sports?|games|autos|culture|travel|top|AI|economics?|finance|financial|money|markets|energy"
    r"|education|environment|climate|crime|courts?|legal|investigative|investigations|city|local"
    r"|regional|metro|state|world|international|diplomatic|defence|defense|arts?|music|film|food"
    r"|fashion|features|digital|data|video|opinion|entertainment|transport|property|white\s+house"
)
_ROLES = (
    r"(?:writer|reporter|editor|correspondent|contributor|columnist|journalist|photographer|producer"
    r"|moderator|blogger|critic)s?|verified|subscriber|member|follow|following"
    r"|(?:chef)?redakteur(?:in)?|reporterin|korrespondent(?:in)?|journalistin|autorin"
    r"|journaliste|rédact(?:eur|rice)|correspondante?|envoyée?\s+spéciale?"
    r"|periodista|redactora?|corresponsal|enviad[oa]\s+especial|giornalista|inviat[oa]|jornalista"
)
# After a comma.
_POSITIONS = r"ceo|cto|founder|co-founder|director|president|professor|analyst|lecturer|fellow"
_WEEKDAYS = (
    r"montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag|lundi|mardi|mercredi|jeudi"
    r"|vendredi|samedi|dimanche|lunes|martes|miércoles|jueves|viernes|sábado|domingo"
    r"|mon|tues?|wed|thu(?:rs?)?|fri|sat|sun|(?:mo|di|mi|do|fr|sa|so)(?=\.?,|\.$)"
)
# The words of a byline after a name: a day of the week, or the person's role. Any words may be
# before a role that follows a comma.
_AFTER_PERSON = re.compile(
    rf"(?:\s*,\s*(?:{_WEEKDAYS})"
    rf"|\s*,\s*(?:[\w&/’'-]+\s+){{0,4}}?(?:{_ROLES}|{_POSITIONS}|special\s+to)"
    rf"|(?:\s*,\s*|\s+)(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day"
    rf"|(?:(?:{_ROLE_WORDS})\s+)*(?:{_ROLES})))\b.*$",
    re.IGNORECASE | re.DOTALL,
)
# The words for a reporter after a name in Chinese, Japanese and Korean.
_AFTER_NAME_WITHOUT_SPACES = re.compile(r"\s*(?:기자|記者|记者)$")
# An agency or a place after a name.
_IN_BRACKETS = re.compile(r"\s*[(（][^()（）]*[)）]?$")
# Words in lower case that may be within a name, or between two.
_WORDS_IN_NAME = frozenset(
    """
    and und et e y i og och en ja by with mit for of on the van von vom zu zur zum der den de di da
    do dos das del della la las los le du el al bin ibn ben ter ten af av
    """.split()
)
# Words of the names of organisations.
_ORGANISATIONS = frozenset(
    """
    academy agency alliance association board bureau campaign center centre coalition college
    commission committee council department editors foundation fund group initiative institute
    ministry movement network office partnership project school service society staff team union
    university
    """.split()
)
_MEDIA = frozenset(
    """
    news times post herald tribune press journal magazine today daily gazette guardian telegraph
    chronicle observer mirror register weekly review media tv radio university institute
    """.split()
)
_AGENCIES = frozenset("ap afp bbc cnn dpa nbc cbs abc npr ansa efe upi pti ani sid apa".split())
# A longer word after a comma is an affiliation or a role. A shorter one may be a suffix, like "Jr".
_MAX_SUFFIX_CHARS = 3
# A word in capitals with more characters is a name, and a shorter one a broadcaster or an agency.
_MAX_AGENCY_CHARS = 5
_NUM_WORDS_OF_AGENCY = 2
# Before a role. "Staff Writer" and "Guest Author" stay as they are.
_MIN_WORDS_OF_NAME = 2
# With more words before "for", the name is that of an organisation.
_MAX_WORDS_OF_PERSON = 3
_SCRIPT_VALUE = re.compile(
    r"(?:(?:\[object \w+\]|undefined|null|nil|NaN|none|n/a|unknown)(?:[\s,]+|$))+", re.IGNORECASE
)
# A variable that a template has not replaced.
_TEMPLATE = re.compile(r"\{\{|\$\{|<%|%\w+%|\{%|\[\[")
# Defaults of templates and systems.
_PLACEHOLDER_NAMES = ("author", "admin", "administrator", "follow", "subscribe")
# Not `Jr.` or `e.V.`
_ENDS_SENTENCE = re.compile(r"^[^\W\d_.][^\W\d_A-Z.]{3,}\.$")
_MAX_NAME_CHARS = 100
_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]{2,}")


def is_script_value(text: str) -> bool:
    """Return whether a text is what a script or a template writes in place of a missing value."""
    return _SCRIPT_VALUE.fullmatch(text) is not None or _TEMPLATE.search(text) is not None


def name_in_byline(byline: str) -> str | None:
    """Return the name in the text of a byline; None if it has none."""
    text = _without_label(byline)
    if text and len(byline) <= _MAX_BYLINE_CHARS:
        text = _before_next_label(text)
    name = name_of_person(_AFTER_NAME.sub("", text)) if text else None
    return _without_rest(name, cuts_at_lower=True) if name else None


def name_of_person(text: str) -> str | None:
    """Return a text in one line without "By" if it may be a name; else None."""
    name = _without_role(_without_label(text) or "")
    is_long = len(name) > 2 or _WITHOUT_SPACES.fullmatch(name) is not None
    if (
        is_long
        and len(name) < _MAX_NAME_CHARS
        and not is_script_value(name)
        and name.lower() not in _PLACEHOLDER_NAMES
        and "://" not in name
        and not name.startswith(("www.", "@"))
        and not _NUMBER.search(name)
    ):
        return name
    return None


def _without_label(text: str) -> str | None:
    """Return a text without the label before a name; None if the name is not the author's."""
    label = _LABEL.match(text)
    if label is not None and _is_name(label[0]):
        label = None
    by = _BY.match(text) if label is None else None
    if label is None and by is None:
        return text
    if _OTHER_LABEL.match(text):
        return None
    if by is not None:
        return text[by.end() :]
    # `Author: by Ada Fox`.
    return _BY.sub("", _LABEL.sub("", text))


def _before_next_label(text: str) -> str:
    """Return what is before another label; of `Ada Fox: Two boats`, what is before the colon."""
    match = _NEXT_LABEL.search(text)
    if match is None:
        return text
    before = text[: match.start()]
    return before if _has_name(before) else text.partition(":")[0]


def _has_name(text: str) -> bool:
    """Return whether a text is long enough for a name."""
    return len(text.split()) >= _MIN_WORDS_OF_NAME or _WITHOUT_SPACES.match(text) is not None


def _is_name(label: str) -> bool:
    """Return whether words before a colon may be the name itself, as in `Ada Fox: Two boats`."""
    words = label.split()
    return len(words) > 1 and words[1][0].isupper()


def _without_role(text: str) -> str:
    """Return a byline without a role, a badge, a weekday or brackets after its name."""
    name = text
    for rest in (_AFTER_PERSON, _IN_BRACKETS, _AFTER_NAME_WITHOUT_SPACES):
        shorter = rest.sub("", name)
        name = shorter if _has_name(shorter) else name
    return _without_rest(name, cuts_at_lower=False)


def _without_rest(name: str, *, cuts_at_lower: bool) -> str:
    words = name.split()
    words = words[: _end_of_name(words, cuts_at_lower=cuts_at_lower)]
    if len(words) >= _MIN_WORDS_OF_NAME and _ENDS_SENTENCE.search(words[-1]):
        words[-1] = words[-1].rstrip(".")
    return " ".join(words).rstrip(", ✓✔☑★")


def _end_of_name(words: Sequence[str], *, cuts_at_lower: bool) -> int:
    """Return the number of words of a byline that are names.

    After two words with capitals, a name ends at a comma before a word in lower case, an
    affiliation or a last word; with `cuts_at_lower`, it ends before any word in lower case.
    """
    num_capitals = 0
    for index, word in enumerate(words):
        if num_capitals >= _MIN_WORDS_OF_NAME:
            is_after_comma = words[index - 1].endswith(",")
            is_lower = word[0].islower() and word.rstrip(",") not in _WORDS_IN_NAME
            if is_lower and (is_after_comma or cuts_at_lower):
                return index
            if word == "for" and cuts_at_lower and _is_person(words[:index]):
                return index
            if is_after_comma and _is_affiliation(words[index:], words[:index]):
                # A place may follow an affiliation.
                return _end_of_name(words[:index], cuts_at_lower=cuts_at_lower)
        num_capitals += word[0].isupper()
    return len(words)


def _is_person(words: Sequence[str]) -> bool:
    """Return whether the words before `for` name a person, who writes for somebody."""
    is_short = len(words) <= _MAX_WORDS_OF_PERSON
    return is_short and _ORGANISATIONS.isdisjoint(word.lower() for word in words)


def _is_affiliation(words: Sequence[str], before: Sequence[str]) -> bool:
    """Return whether the words after a comma do not name another person than those before it."""
    first = words[0]
    if first == "The" or not _MEDIA.isdisjoint(word.lower() for word in words[:3]):
        return True
    is_suffix = len(first) <= _MAX_SUFFIX_CHARS or first.isupper() or "." in first
    if len(words) == 1:
        return not is_suffix or first.lower() in _AGENCIES
    if len(words) != _NUM_WORDS_OF_AGENCY or before[0].isupper():
        return False
    return first.isupper() and first.isalpha() and 1 < len(first) <= _MAX_AGENCY_CHARS
