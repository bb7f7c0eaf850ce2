"""python3 src/doctor/make_stable_names.py WHEEL...: the rows of [stable] in src/doctor/doctor.tables, from torch wheels of all releases, for any
platform (those for macOS are small). A name's release is the first after which every release declares it."""
import re
import sys
import zipfile

HEADERS = re.compile(r"aoti_torch/(c|generated)/\w*shim\w*\.h$|csrc/stable/c/shim\.h$")
WIDTH = 150


def declared(path):
    names = set()
    with zipfile.ZipFile(path) as z:
        for member in filter(HEADERS.search, z.namelist()):
            text = re.sub(r"//.*", "", z.read(member).decode())
            names |= set(re.findall(r"\b((?:aoti_)?torch_\w+)\s*\(", text))
    return names


releases = {}
for wheel in sys.argv[1:]:
    release = re.search(r"torch-(\d+)\.(\d+)", wheel)
    releases[int(release[1]), int(release[2])] = declared(wheel)
order = sorted(releases)
since = {}
for name in releases[order[-1]]:
    first = len(order) - 1
    while first and name in releases[order[first - 1]]:
        first -= 1
    since.setdefault(order[first], []).append(name)
for release in sorted(since):
    head = "%d.%d|" % release
    line = head
    for name in sorted(since[release]):
        if len(line) + len(name) + 1 > WIDTH:
            print(line)
            line = head
        line += (" " if line != head else "") + name
    print(line)
