"""Word lists of general English that tell which words of a prompt carry meaning, and of which kind. Data only.

Used by the reader of prompts (`phrases.py`), the aligner and the second gate. Entries are base forms: `stemming.py`
folds inflected words onto them. Knows nothing about any model's vocabulary.
"""

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DETERMINERS: Final = _words("a an one each every the this that these those his her its their my your our some any")
AUXILIARIES: Final = _words(
    "is are was were be been being am has have had having do does did will would can could should may might must"
)
CONJUNCTIONS: Final = _words("and or but while as then & plus whereas where when")
PRONOUNS: Final = _words("it they he she we i you who which whose him them us me himself herself itself themselves")
PREPOSITIONS: Final = _words("of in on at by for to with against upon via per into onto than")
"""Those that change little by themselves; `RELATIONS` says which do."""
FILLERS: Final = _words("there here also just very so too etc s t medium medium-sized mid-sized")
FUNCTION_WORDS: Final = DETERMINERS | AUXILIARIES | CONJUNCTIONS | PRONOUNS | PREPOSITIONS | FILLERS
FRAMINGS: Final = _words("video clip footage")
"""Before `of` or `showing` these say only that the prompt asks for a video."""

NEGATIONS: Final = _words(
    "no not never without none nobody nothing neither nor isn't aren't wasn't weren't don't doesn't didn't can't "
    "cannot won't hasn't haven't"
)
NUMBERS: Final = _words(
    "two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred thousand dozen "
    "pair couple several many few single double triple multiple numerous both all another group crowd lone only "
    "zero"
)
UNITS: Final = _words("k mm fps p d px s shutter iso")
"""After a numeral these make it a property of the picture and not a count."""
COLOURS: Final = _words(
    "red scarlet crimson maroon green lime olive emerald blue navy azure teal yellow gold golden purple violet "
    "lavender magenta orange cyan turquoise white black gray grey silver brown beige tan pink coral bronze copper "
    "ivory amber indigo colorful colourful colored coloured monochrome grayscale blonde brunette"
)
DIRECTIONS: Final = _words(
    "left right up down leftward rightward upward downward forward backward clockwise counterclockwise "
    "anticlockwise north south east west top bottom front back above below under beneath underneath over behind "
    "inside outside towards toward away ascend descend in-front-of"
)
RELATIONS: Final = _words(
    "from above below under beneath underneath over behind inside outside towards toward away beside near between "
    "among around across along past through within beyond during before after without amid amongst like "
    "surrounded in-front-of"
)
"""Prepositions that say where or when: changing one changes the picture."""
SIZES: Final = _words("small large tall short huge giant long wide thick thin gigantic")

MOTIONS: Final = _words(
    "move go walk run jump leap hop fly swim dance spin rotate turn fall rise drop climb crawl slide drift glide "
    "float roll bounce swing sway shake wave chase follow race ride drive sail surf ski skate skateboard cycle "
    "march stroll jog sprint gallop trot canter dive splash flow pour explode burst shatter melt grow shrink zoom "
    "pan tilt orbit circle dolly approach return enter leave cross pass push pull throw catch kick hit punch "
    "fight lift carry drag stand sit lie rest stay remain stop still kneel bend lean sleep wake blink nod juggle "
    "flip twirl whirl hover soar land take-off launch crash collide slow fast quick slowly quickly rapidly "
    "fast-forward timelapse time-lapse motion slow-motion stare look watch gaze smile laugh cry scream talk speak "
    "sing play eat drink cook paint draw write read feed work fish hunt bark burn blow rain snow graze perform "
    "score shoot hug kiss hold wear use make open close hand give put wash cut tighten load coordinate travel "
    "come hang scatter emerge appear disappear transform morph"
)
ADVERBS: Final = _words(
    "slowly quickly rapidly gently gracefully suddenly calmly happily fast slow together apart away alone again "
    "forever back forward up down around high low still"
)
"""Words that may follow a verb and are not its object."""
LIGHT_VERBS: Final = _words("move slide drift glide stay remain stand keep be")
"""Before a direction or `still` these add nothing: `moves left`, `drifts left` and `left` are the same motion."""
CLOTHING_VERBS: Final = _words("wear hold carry dress sport")
"""What these add belongs to their subject."""

BACKDROPS: Final = _words("background backdrop")
"""Any preposition before these means the same."""
PLAIN: Final = _words("plain solid uniform")
"""Before a backdrop these say only that there is nothing on it."""
SCENES: Final = BACKDROPS | _words(
    "scene scenery landscape cityscape skyline horizon sky cloud sea ocean lake river beach shore coast island "
    "wave water forest jungle wood woods garden park field meadow pasture grass hill mountain valley canyon "
    "desert dune snow ice glacier cave volcano space galaxy universe planet mars moon sun sunset sunrise dusk "
    "dawn night day daytime nighttime morning evening afternoon noon midnight twilight winter summer spring "
    "autumn rain rainy storm stormy fog foggy mist misty sunny cloudy weather city town village street road "
    "highway alley bridge building house room kitchen bedroom bathroom office studio stage gym ballroom floor "
    "wall ceiling window roof rooftop hallway corridor church temple castle palace museum library school hospital "
    "station airport stadium arena court pool market shop store mall restaurant cafe bar factory warehouse farm "
    "barn yard backyard ground world land place area environment wilderness underwater indoors outdoors "
    "antarctica atmosphere skatepark playground racetrack track trail"
)
STYLES: Final = _words(
    "video clip footage style styled aesthetic art artwork painting illustration drawing sketch render rendering "
    "rendered photo photograph photography photographic picture image portrait film movie cinematic animation "
    "animated anime cartoon comic manga pixar disney lego claymation pixel watercolor oil realistic "
    "photorealistic hyperrealistic hyper-realistic realism surreal abstract detailed detail intricate resolution "
    "quality masterpiece hd uhd hdr 4k 8k 16k 2k k 3d 2d octane unreal engine blender vray artstation deviantart "
    "cgsociety trending concept lighting lit light lights volumetric dramatic moody mood epic beautiful stunning "
    "gorgeous vintage retro sepia grayscale noir bokeh focus sharp blur blurry lens shot angle close-up closeup "
    "wide-angle aerial drone view camera composition depth contrast saturation vibrant effect filter texture "
    "color colour colors ambient ultra highly super raytracing ray tracing minimalist impressionism cubism "
    "pointillism ukiyo-e cyberpunk steampunk fantasy sci-fi futuristic hyperdetailed award-winning"
)
ADJECTIVE_ENDINGS: Final = ("ed", "ic", "ful", "ous", "ive", "less", "able", "ible", "est", "ly")

SYNONYMS: Final[tuple[tuple[str, ...], ...]] = (
    ("large", "big", "huge"),
    ("small", "little", "tiny"),
    ("gray", "grey"),
    ("red", "scarlet"),
    ("purple", "violet"),
    ("cyan", "turquoise"),
    ("navy", "dark blue"),
    ("colorful", "colourful"),
    ("color", "colour"),
    ("circle", "disc", "disk"),
    ("background", "backdrop"),
    ("move", "slide", "drift", "glide"),
    ("up", "rise", "ascend", "upward", "upwards"),
    ("down", "fall", "descend", "downward", "downwards"),
    ("left", "leftward", "leftwards"),
    ("right", "rightward", "rightwards"),
    ("still", "rest", "motionless", "stationary", "not move", "doesn't move", "don't move", "not moving"),
    ("without", "no", "not any"),
    ("beside", "next to"),
    ("in-front-of", "in front of"),
    ("below", "beneath", "under", "underneath"),
    ("toward", "towards"),
    ("quickly", "rapidly", "fast", "quick"),
    ("slowly", "slow"),
    ("car", "automobile"),
    ("photo", "photograph", "picture"),
    ("bike", "bicycle"),
    ("motorcycle", "motorbike"),
    ("airplane", "aeroplane", "plane"),
    ("television", "tv"),
    ("begin", "start"),
    ("woman", "lady"),
    ("child", "kid"),
    ("sofa", "couch"),
    ("street", "road"),
    ("woods", "forest"),
    ("ocean", "sea"),
    ("4k", "uhd"),
)
"""Words and short phrases that ask for the same picture; the first of a group stands for all."""
IRREGULAR: Final = {
    "men": "man", "women": "woman", "people": "person", "children": "child", "mice": "mouse", "feet": "foot",
    "teeth": "tooth", "geese": "goose", "wolves": "wolf", "leaves": "leaf", "knives": "knife", "lives": "life",
    "ran": "run", "flew": "fly", "flown": "fly", "swam": "swim", "rose": "rise", "risen": "rise", "fell": "fall",
    "fallen": "fall", "went": "go", "gone": "go", "drove": "drive", "rode": "ride", "ate": "eat", "sat": "sit",
    "stood": "stand", "wore": "wear", "held": "hold", "threw": "throw", "caught": "catch", "sang": "sing",
    "lying": "lie", "dying": "die", "shone": "shine", "slept": "sleep", "swung": "swing", "spun": "spin",
    "made": "make", "gave": "give", "came": "come", "wrote": "write", "drew": "draw", "blew": "blow", "grew": "grow",
}  # fmt: skip
PLURALS: Final = _words("men women people children mice feet teeth geese wolves leaves knives lives cacti")
