"""Names of people, places, products and days for reports."""

from __future__ import annotations

_FIRST_NAMES = """
Ada Alan Alma Anna Arno Astrid Bela Ben Bruno Carla Cedric Clara Daniel Dora Edgar Elena Elsa Emil Erik Esther
Fatima Felix Flora Frida Georg Greta Hanna Henry Hugo Ida Igor Ines Ivan Jana Jonas Julia Karim Kate Klara Lena
Leo Linda Lotta Lucas Maja Marco Marta Max Mina Nadia Nils Nina Nora Olga Oscar Otto Paula Pedro Petra Quentin
Rafael Rita Rosa Ruth Samir Sara Silas Sofia Stella Sven Tara Theo Tilda Tom Ugo Vera Victor Wanda Yara Yusuf
Zoe
"""
FIRST_NAMES = tuple(_FIRST_NAMES.split())
_SURNAMES = """
Abbott Adler Almeida Arden Bailey Barlow Becker Berg Blake Bloom Brandt Calder Carver Castell Cole Conway Dalton
Dietz Drake Ellis Evans Falk Farrow Fischer Foster Gallo Garner Gibson Glover Grant Haas Hale Harper Hayes Holm
Hooper Ibsen Ivory Jansen Jensen Keller Kent Klein Kovac Lambert Lang Larsen Lopez Mason Meyer Miller Moss
Navarro Nolan Norris Okafor Olsen Parker Patel Pohl Quinn Ramos Reed Rossi Russo Sato Schmidt Shaw Silva Stone
Tanaka Thorne Turner Vance Vogel Walker Weber Winter Wolf Yates Ziegler
"""
SURNAMES = tuple(_SURNAMES.split())
_TOWNS = """
Alderton Amberley Ashford Barton Bexley Birchwood Blackpool Bramford Brighton Caldwell Camden Carlow Chester
Clifton Corby Crossfield Dalby Darwen Denholm Dover Dunmore Eastham Edgeley Elmswood Fairview Farnham Fenwick
Galway Gladstone Glenmore Grafton Halden Harwich Hatfield Hillcrest Holbrook Ironbridge Kelso Kendal Kingsley
Lakewood Langford Lowell Lynton Maldon Marlow Melrose Milford Newbury Northam Norwood Oakham Oldbury Oxley
Penrith Preston Ravenna Redhill Ripley Rockport Salford Sandwick Selby Sheldon Stanton Sutton Tarbert Thornbury
Tilbury Upton Wakefield Walden Warwick Westbrook Whitby Windham Woodstock Yarmouth
"""
TOWNS = tuple(_TOWNS.split())
STREETS = tuple(
    f"{name} {kind}"
    for name in (
        *("Mill", "Church", "Station", "Harbour", "Market", "Garden", "Castle", "River", "School", "Bridge"),
        *("Chapel", "Orchard", "Tower", "Meadow"),
    )
    for kind in ("Street", "Road", "Lane")
)
FIRMS = tuple(
    f"{name} {kind}"
    for name in ("Arbor", "Bluestone", "Cobalt", "Delta", "Everett", "Fulcrum", "Granite", "Helix", "Juniper", "Larkin")
    for kind in ("Works", "Systems", "Trading", "Foods")
)
_PRODUCTS = """
Lantern Quillbox Pebble Driftwood Copperleaf Starling Mosaic Tidepool Anvil Compass Fernbase Harvester Kestrel
Lumen Marble Nimbus Otter Pinecone Quartz Rivet Sparrow Thicket Umber Willow
"""
PRODUCTS = tuple(_PRODUCTS.split())
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
CURRENCIES = ("euros", "dollars", "pounds", "francs")
