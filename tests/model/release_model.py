# mypy: ignore-errors
"""Explicit-state model of a version's way from the joint coin to the release, searched breadth first.

Modelled: servers A (leader) and B, a dealer that remembers its last attempt, two owners whose SDKs keep an account, the openings
both servers signed, and receipts; the operators; the joint coin, attempts and their cap, the counter of opened attempts, prepare,
countersign, sent, share, voids, re-sending, re-release with m, and what is learned after a database was replaced.
Not modelled: values, masks, signatures as bytes (a message is what its sender signed), time, a party that departs from the
protocol, an owner who never comes back to show what it holds.

Faults. A cut loses all that is in flight (a prefix has arrived). A step is ONE durable write and then its sends, and memory
never outlives the link, so a crash is a cut: before the write it is the message lost, between write and send the send lost; a
noisy share counts as left once *sent* is written. Mutants that send first keep their write in `todo`, which a crash drops.
With --replace, each of one or both databases is replaced once by any earlier snapshot of itself. Faults stop when the last
attempt opens, so that liveness can be asked: from every state every way on without a fault ends with the last model.

Bounds: --versions, --attempts, --cap (opened attempts before operators are asked), two owners, the counted set of an attempt {1}
or {1,2} (--sets 3: or {2}), less the owners who hold a receipt of release. FIXES are rules of docs/protocol.md, on unless --without.

Run: release_model.py                                  cuts and crashes
     release_model.py --replace one                    and one replaced database; `both`: each of both, once
     release_model.py --replace one --without derive   the shortest trace of what that rule prevents
     release_model.py --mutants                        what each of MUTANTS breaks: all must be caught
"""

import argparse
import sys
import time
from collections import Counter, deque
from typing import NamedTuple

FIXES = {
    "derive": "a server's coin bytes are a PRF under a key kept beside its signing key: a lost database loses none",
    "journal": "entries countersigned and attempts opened are also appended to a file outside the database before words leave",
    "ownhead": "entries are adopted under a head that the server signed or countersigned, not only a countersigned one",
    "agree_first": "a server's digest and receipts leave only once the other holds the same model",
    "voids": "a void stands in both ledgers, and is learned again like a charge",
    "readopt": "a model whose digest a server signed in receipts is taken back from an owner, never released again",
}
MUTANTS = {  # name: (what is wrong, databases that must be replaced to see it, fixes that would hide it)
    "sent_first": ("the noisy share leaves with the own head, before the countersignature", 0, []),
    "void_alone": ("a prepared entry that isn't sent is voided alone once the link is back", 0, []),
    "countersign_any": ("the other head is countersigned by a server that is not prepared", 0, []),
    "charge_late": ("the charge is written with the model, not with prepared", 0, []),
    "fresh_noise": ("a share that is asked for again carries new noise", 0, []),
    "sdk_late": ("the SDK does not charge before it shares X", 0, []),
    "count_late": ("the opened attempt is counted after the first masked word", 0, []),
    "coin_per_attempt": ("the coin is drawn anew for an attempt", 0, []),
    "coin_early": ("coin bytes are sent before they are durable", 0, ["derive"]),
    "heard_early": ("clients hear of a coin that A has, and B loses it", 1, ["derive"]),
    "given_volatile": ("its countersignature leaves before it is durable", 1, ["journal"]),
    "void_countersigned": ("a server that has countersigned or sent voids", 1, ["journal"]),
    "no_m": ("a written-off release is not counted by m", 1, ["journal"]),
    "no_adopt": ("a server that forgot charges learns none", 1, ["journal"]),
}
ON = set(FIXES)
V, MAXA, CAP, SETS, REPLACE = 1, 3, 2, (1, 3), 0
AB = (0, 1)
NONE = frozenset()


class Db(NamedTuple):  # durable, one server
    coin: tuple  # per version: own bytes, the other's commitment and opening; 0 is nothing
    att: int = 0  # the last attempt of the current version that it has agreed to
    opened: int = 0  # attempts of it whose comparisons were opened
    led: frozenset = NONE  # charges (version, attempt, owners) that are not voided
    cov: frozenset = NONE  # those of `led` under a head that the other countersigned
    has: frozenset = NONE  # those of the other's ledger under a head of its that this one keeps
    prep: tuple = ()  # (attempt, owners, noise): own noisy share, prepared and not voided
    given: bool = False  # has countersigned the other's head for it
    sent: bool = False
    theta: tuple = ()  # per finished version (A's share, B's share)


class Ghost(NamedTuple):  # what happened, and what dealer, owners and journals remember
    left: frozenset = NONE  # (server, version, share)
    signed: frozenset = NONE  # (server, version, attempt): that server countersigned
    heard: frozenset = NONE  # (version, coin): a client heard of it
    seen: frozenset = NONE  # (version, coin): a server could compute it
    sdk: tuple = ()  # per version and owner: (count, last attempt, charges signed at its openings)
    rec: tuple = (NONE, NONE)  # per server, what its receipts show: charges of finished versions
    told: tuple = (NONE, NONE)  # per server, (version, theta) that came with the receipts
    journal: tuple = ((NONE, (1, 0)),) * 2
    draws: tuple = (0, 0)
    masked: int = 0  # attempts of the current version whose masked words left
    deal: tuple = (1, 0)  # dealer: last (version, attempt)
    snap: tuple = ((), ())  # a snapshot, or 'used'


class State(NamedTuple):
    db: tuple
    g: Ghost
    mem: tuple = (("down", ()),) * 2  # per server (phase, argument), lost with the link
    q: tuple = ((), ())  # q[s]: messages in flight to s, in order
    todo: tuple = ((), ())  # late writes (mutants)
    up: bool = False


def put(t, i, x):
    return t[:i] + (x,) + t[i + 1 :]


def ver(db):
    return len(db.theta) + 1


def count(led, v, c):
    return len({e[1] for e in led if e[0] == v and e[2] >> c & 1})


def entry(db):
    return (ver(db),) + db.prep[:2]


def unprepare(db, keep):
    led = db.led if keep else db.led - {entry(db)}
    return db._replace(prep=(), given=False, sent=False, led=led)


def write_off(st, s):  # the charge stays, at both: a release may have left
    drop = {entry(st.db[s])} if "no_m" in ON else NONE
    both = put(st.db, s, unprepare(st.db[s], True))
    return st._replace(db=tuple(d._replace(led=d.led - drop) for d in both))


def roll(db, theta, led):  # the version is over
    return db._replace(theta=theta, led=led, att=0, opened=0, prep=(), given=False, sent=False)


# ---- greeting: what each does next, from both databases, the owners, the dealer and the own journal
def voidable(db):
    return not (db.given or db.sent) or "void_countersigned" in ON


def adoptable(y):
    """Charges of y's ledger that the other may learn: under its own signature, and at most the one pending release."""
    # Not what will be voided, or finished, first.
    led = y.led - ({entry(y)} if y.prep and voidable(y) else NONE)
    known = led & (y.cov | (y.has if "ownhead" in ON else NONE))
    return NONE if "no_adopt" in ON else known | set(sorted(led - known)[:1])


def target(s, x, y, g):
    """x after all that it can learn."""
    v = ver(x)
    att, opened = (max(x.att, y.att), max(x.opened, y.opened)) if ver(y) == v else (x.att, x.opened)
    if "readopt" in ON:
        for t in [t for w, t in g.told[s] if w == v]:
            gone = {entry(x)} - g.rec[s] if x.prep else NONE
            return roll(x, x.theta + (t,), (x.led | g.rec[s]) - gone)
    if x.prep and att > x.prep[0]:
        # Both agreed to a later attempt: voided, or written off and in both ledgers.
        x = unprepare(x, entry(x) in y.led)
    led = x.led | adoptable(y) | g.rec[s]
    if "journal" in ON:
        entries, (w, n) = g.journal[s]
        led = led | entries
        att = max([att] + [a for u, a, _ in entries if u == v])
        opened = max(opened, n) if w == v else opened
        if x.prep and entry(x) in entries:
            x = x._replace(given=True)
    lost, void = {}, 0
    for c in AB:  # an attempt that only owners remember counts as sent: m grows by one
        _, a, openings = g.sdk[v - 1][c]
        led = led | openings
        if a > att:
            lost[a] = lost.get(a, 0) | 1 << c
        if x.prep and a > x.prep[0] and x.prep[0] not in {e[1] for e in openings}:
            void |= 1 << c  # the own prepared one had been voided when that attempt opened
    if x.prep and not x.given and x.prep[1] & void:
        rest = entry(x)[:2] + (x.prep[1] & ~void,)
        led, x = led - {entry(x)} | ({rest} if rest[2] else NONE), unprepare(x, True)
    led, att = led | {(v, a, owners) for a, owners in lost.items()}, max([att, *lost])
    return x._replace(led=frozenset(led), att=att, opened=opened)


def plan(s, x, y, g):
    v = ver(x)
    if v != ver(y):
        return ("fin", ()) if v > ver(y) else ("wait", ())
    if v > V:
        return ("wait", ())
    new = target(s, x, y, g)
    if new != x or target(1 - s, y, x, g) != y:
        return ("write", new) if new != x else ("wait", ())
    (own, oc, oo), (yown, yoc, yoo) = x.coin[v - 1], y.coin[v - 1]
    if not own:
        if yoo or (yoc and "derive" in ON):  # own bytes under the own signature, or computed again
            return ("write", x._replace(coin=put(x.coin, v - 1, (yoo or yoc, 0, 0))))
        return ("wait", ()) if yoc else ("draw", ())
    if not yown and oc:  # the other lost bytes: it recovers them, or both operators discard
        return ("wait", ()) if oo or "derive" in ON else ("discard", ())
    if not (oo and yoo):
        return ("commit", ())
    if "void_alone" in ON and x.prep and not x.sent:
        return ("write", unprepare(x, False))
    if x.prep and y.prep:
        return ("head", ())
    if x.prep:
        return ("wait", ()) if voidable(x) else ("lost", ())
    if y.prep:
        return ("nop", y.prep[0]) if voidable(y) else ("wait", ())
    return ("idle", ()) if s == 0 else ("wait", ())


# ---- steps
class Step(NamedTuple):
    label: str
    db: Db  # after it
    g: Ghost
    mem: tuple = ("wait", ())  # phase after it
    sends: tuple = ()


def leave(g, s, db):
    return g._replace(left=g.left | {(s, ver(db), db.prep)})


def note(g, s, e=(), opened=()):  # the journal
    entries, n = g.journal[s]
    return g._replace(journal=put(g.journal, s, (entries | {e} if e else entries, opened or n)))


def coin_of(db, i, d):
    """One of the version's three words on its coin is now d."""
    v = ver(db) - 1
    return db._replace(coin=put(db.coin, v, put(db.coin[v], i, d)))


def prepare(st, s, owners):
    x, n, rel = st.db[s], "AB"[s], ("rel", ())
    db = x._replace(prep=(x.att, owners, 0), given=False, sent=False)
    db = db if "charge_late" in ON else db._replace(led=db.led | {entry(db)})
    head = ("HEAD", entry(db), db.led)
    if "sent_first" in ON:
        sends = (head, ("SHARE", db.prep))
        return Step(f"{n} prepares, sends its share", db, leave(st.g, s, db), rel, sends)
    return Step(f"{n} prepares", db, st.g, rel, (head,))


def own_step(st, s):
    """The step that server s takes without a message."""
    (phase, arg), x, g, n = st.mem[s], st.db[s], st.g, "AB"[s]
    v = ver(x)
    match phase:
        case "write":
            return Step(f"{n} learns", arg, g)
        case "fin":
            return Step(f"{n} sends its finished versions", x, g, sends=(("FIN", x),))
        case "draw":
            d = 1 if "derive" in ON else g.draws[s] + 1
            db = x._replace(coin=put(x.coin, v - 1, (d, 0, 0)))
            g = g._replace(draws=put(g.draws, s, g.draws[s] + 1))
            return Step(f"{n} draws bytes {d}", db, g, ("coin", d), (("COMMIT", d),))
        case "commit":
            d = x.coin[v - 1][0]
            return Step(f"{n} sends its commitment", x, g, ("coin", d), (("COMMIT", d),))
        case "head":
            return Step(f"{n} sends its head", x, g, ("rel", ()), (("HEAD", entry(x), x.led),))
        case "nop":
            return Step(f"{n} signs: not prepared for {arg}", x, g, sends=(("NOPREP", arg),))
        case "close":
            db = x._replace(opened=x.opened + 1)
            g = note(g, s, opened=(v, db.opened))
            return Step(f"B closes with {arg:02b}", db, g, ("mask", arg), (("LIST", arg),))
        case "prepare":
            return prepare(st, s, arg)
    return None


def open_attempt(st):
    x, g, v = st.db[0], st.g, ver(st.db[0])
    a, coin = x.att + 1, (x.coin[v - 1][0], x.coin[v - 1][2])
    if "coin_per_attempt" in ON:
        coin = (coin[0] + a - 1, coin[1])
    word = " (operators' word)" if x.opened >= CAP or any(e[0] == v for e in x.led) else ""
    g = g._replace(heard=g.heard | {(v, coin)}, masked=g.masked if a > 1 else 0)
    db = x._replace(att=a)
    return Step(f"A opens attempt {a}{word}", db, g, ("open", ()), (("OPEN", a),))


def submit(x, y, g, a):
    """Owners upload to attempt a of x's version: one outcome per counted set."""
    v, out = ver(x), sum(1 << c for c in AB if any(count(r, ver(x), c) for r in g.rec))
    if g.deal >= (v, a):
        raise AssertionError("an attempt number is dealt for twice")
    for owners in sorted({o & ~out for o in SETS}):
        sdk = g.sdk
        for c in AB:
            if owners >> c & 1:  # the SDK charges 1 + the larger m signed, before it shares X
                n, _, openings = sdk[v - 1][c]
                openings = openings | {e for e in x.led | y.led if e[0] == v and e[2] >> c & 1}
                n = n if "sdk_late" in ON else max(n, 1 + count(openings, v, c))
                sdk = put(sdk, v - 1, put(sdk[v - 1], c, (n, a, openings)))
        yield owners, g._replace(sdk=sdk, deal=(v, a))


def receive(st, s):
    """The steps on the next message for server s, none while it isn't ready for it."""
    (phase, arg), x, g, n, msg = st.mem[s], st.db[s], st.g, "AB"[s], st.q[s][0]
    kind, v, stay = msg[0], ver(x), st.mem[s]
    match kind, phase:
        case "FIN", _:
            z = msg[1]
            led = x.led | adoptable(z)
            if x.prep and entry(x) not in z.led and "voids" in ON:
                led = led - {entry(x)}
            return [Step(f"{n} finishes from the other", roll(x, z.theta, frozenset(led)), g)]
        case "COMMIT", "coin" if x.coin[v - 1][1] in (0, msg[1]):
            label, db = f"{n} stores the commitment, reveals", coin_of(x, 1, msg[1])
            return [Step(label, db, g, stay, (("REVEAL", arg),))]
        case "REVEAL", "coin" if x.coin[v - 1][1] == msg[1]:
            coin = (arg, msg[1]) if s == 0 else (msg[1], arg)
            heard = {(v, coin)} if "heard_early" in ON and s == 0 else NONE
            g = g._replace(seen=g.seen | {(v, coin)}, heard=g.heard | heard)
            return [Step(f"{n} stores the opening", coin_of(x, 2, msg[1]), g, stay)]
        case "OPEN", _:
            db = x._replace(att=msg[1])
            found = submit(x, st.db[0], g, msg[1])
            return [Step(f"B joins, {o:02b} upload", db, h, ("close", o)) for o, h in found]
        case "LIST", _:
            db = x._replace(opened=x.opened + 1)
            g = note(g._replace(masked=g.masked + 1), s, opened=(v, db.opened))
            return [Step("A counts, sends masked words", db, g, ("mask", msg[1]), (("MASK",),))]
        case "MASK", "mask" if s:
            return [Step("B sends masked words", x, g, ("prepare", arg), (("MASK",),))]
        case "MASK", "mask":
            return [prepare(st, s, arg)]
        case "HEAD", "rel" if msg[1] == entry(x):
            durable = "given_volatile" not in ON
            db = x._replace(given=True, has=x.has | msg[2]) if durable else x
            g = note(g._replace(signed=g.signed | {(s, v, msg[1][1])}), s, msg[1])
            return [Step(f"{n} countersigns", db, g, stay, (("CSIG", msg[2]),))]
        case "HEAD", "prepare" if "countersign_any" in ON:
            return [Step(f"{n} countersigns", x, g, stay, (("CSIG", msg[2]),))]
        case "CSIG", "rel":
            db = x._replace(sent=True, cov=x.cov | msg[1])
            if "fresh_noise" in ON and x.sent:
                db = db._replace(prep=x.prep[:2] + (x.prep[2] + 1,))
            label, g = f"{n} writes sent, sends its share", leave(g, s, db)
            return [Step(label, db, g, stay, (("SHARE", db.prep),))]
        case "SHARE", "rel":
            theta = (x.prep, msg[1]) if s == 0 else (msg[1], x.prep)
            db = roll(x, x.theta + (theta,), x.led | {entry(x)})
            return [Step(f"{n} reconstructs", db, g)]
        case "NOPREP", _ if x.prep and voidable(x):
            return [Step(f"{n} voids", unprepare(x, False), g)]
    return []


# ---- the graph
def after(st, s, step, pop=False):
    label, db, g, mem, sends = step
    q = put(st.q, s, st.q[s][1:]) if pop else st.q
    q = put(q, 1 - s, q[1 - s] + sends)
    for mutant, what, late in ("coin_early", " draws", "own"), ("count_late", " counts", "opened"):
        if mutant in ON and what in label:
            st, db = st._replace(todo=put(st.todo, s, (late, mem[1]))), st.db[s]
    return st._replace(db=put(st.db, s, db), mem=put(st.mem, s, mem), q=q, g=g)


def cut(st):
    return State(st.db, st.g, todo=st.todo)


def greet(st):
    return st._replace(up=True, mem=tuple(plan(s, st.db[s], st.db[1 - s], st.g) for s in AB))


def faults(st):
    g = st.g
    last = g.deal[1] >= MAXA and g.deal[0] == min(map(ver, st.db))
    if last or max(g.draws) > 2 or max(d.att for d in st.db) >= MAXA:
        return
    for s in AB:
        if st.todo[s]:
            yield f"CRASH {'AB'[s]}", cut(st._replace(todo=put(st.todo, s, ())))
    if st.up and not any(st.todo):
        yield "CUT", cut(st)
    for s in AB if REPLACE else ():
        if not g.snap[s] and (REPLACE == 2 or not g.snap[1 - s]):
            yield f"snapshot of {'AB'[s]}", st._replace(g=g._replace(snap=put(g.snap, s, st.db[s])))
        elif g.snap[s] not in ((), "used", st.db[s]):
            used = g._replace(snap=put(g.snap, s, "used"))
            yield f"REPLACE {'AB'[s]}", cut(st._replace(db=put(st.db, s, g.snap[s]), g=used))


def steps(st):
    """(label, is a fault, next state)."""
    g, some = st.g, False
    for s in AB:
        x, step = st.db[s], own_step(st, s)
        if st.todo[s]:
            late, d = st.todo[s]
            db = x._replace(opened=x.opened + 1) if late == "opened" else coin_of(x, 0, d)
            new = st._replace(todo=put(st.todo, s, ()), db=put(st.db, s, db))
            yield f"{'AB'[s]} writes late", False, new
        if step:
            yield step[0], False, after(st, s, step)
        for one in receive(st, s) if st.q[s] and (not step or "countersign_any" in ON) else []:
            some = True
            yield one[0], False, after(st, s, one, True)
        some = some or bool(step or st.todo[s])
    if not st.up:
        yield "link up, greeting", False, greet(st)
    elif not some and not any(st.q):
        if st.mem[0][0] == "idle":
            yield open_attempt(st)[0], False, after(st, 0, open_attempt(st))
        elif greet(st) != st:
            yield "greeting", False, greet(st)
        for s in AB:
            x = st.db[s]
            if st.mem[s][0] == "discard":
                db = x._replace(coin=put(x.coin, ver(x) - 1, (0, 0, 0)))
                yield "operators discard the coin", False, cut(st._replace(db=put(st.db, s, db)))
            if st.mem[s][0] == "lost":
                yield f"operators write off {'AB'[s]}'s release", False, cut(write_off(st, s))
    for s in AB if REPLACE else ():  # receipts come with the model, and may never come
        x = st.db[s]
        told = frozenset(enumerate(x.theta, 1))
        if "agree_first" in ON:
            told = told & frozenset(enumerate(st.db[1 - s].theta, 1))
        if told - g.told[s]:
            rec = g.rec[s] | frozenset(e for e in x.led if e[0] in {v for v, _ in told})
            shown = g._replace(told=put(g.told, s, g.told[s] | told), rec=put(g.rec, s, rec))
            yield f"{'AB'[s]}'s receipts", False, st._replace(g=shown)
    for label, new in faults(st):
        yield label, True, new


# ---- invariants
def broken(old, new):
    g, used = new.g, [x == "used" for x in new.g.snap]
    # Releases that left, by owner.
    gone = {(v, sh[0], c) for _, v, sh in g.left for c in AB if sh[1] >> c & 1}

    def forgotten(led, v, owners=3):
        each = [c for c in AB if owners >> c & 1]
        return any(count(led, v, c) < sum(r[::2] == (v, c) for r in gone) for c in each)

    for s, v, sh in g.left - old.g.left:
        x = new.db[s]
        if (v,) + sh[:2] not in x.led:
            yield "I2 a share left without its durable charge"
        if (1 - s, v, sh[0]) not in g.signed:
            yield "I2 a share left without the countersignature"
        for t, w, other in old.g.left:
            if (t, w) == (s, v) and other[:2] == sh[:2]:
                yield "I1 new noise on the same set"
            elif (t, w) == (s, v) and forgotten(x.led, v, sh[1]):
                yield "I1 a second noisy share, and m does not say so"
    for x in new.db:
        for w, (a, b) in enumerate(x.theta, 1):
            if a[:2] != b[:2] or (w,) + a[:2] not in x.led:
                yield "I3 what was summed is not what was charged on both"
        if any(count(x.led, v, c) > g.sdk[v - 1][c][0] for v in range(1, V + 1) for c in AB):
            yield "I6 the SDK's count is below a server's"
    if any(a != b for a, b in zip(new.db[0].theta, new.db[1].theta)):
        yield "I4 two models of one version"
    both = g.told[0] | g.told[1]
    if len({v for v, _ in both}) < len(both):
        yield "I4 owners were given two models of one version"
    for name, coins in (
        ("I5 clients heard of two cohorts", g.heard),
        ("I5 a coin that was seen is drawn anew", g.seen | g.heard),
    ):
        if len({v for v, _ in coins}) < len(coins):
            yield name
    if all(ver(x) > V for x in new.db):
        if any(forgotten(new.db[s].led | g.rec[s], v) for s in AB for v in range(1, V + 1)):
            yield "I6 fewer charges than releases that left"
    if g.masked > old.g.masked and any(x.opened < g.masked for x in new.db):
        yield "I7 masked words left uncounted"
    if not any(used) and any(m[0] in ("lost", "discard") for m in new.mem):
        yield "I7 operators are asked though no database was replaced"


def inevitable(succ, goal):
    """States from which every way on ends in the goal."""
    back, need, done, todo = [[] for _ in succ], [len(out) for out in succ], set(goal), deque(goal)
    for i, out in enumerate(succ):
        for j in out:
            back[j].append(i)
    while todo:
        for i in back[todo.popleft()]:
            need[i] -= 1
            if not need[i] and i not in done:
                done.add(i)
                todo.append(i)
    return done


def search(limit, long=True):
    first = State((Db(((0, 0, 0),) * V),) * 2, Ghost(sdk=(((0, 0, NONE),) * 2,) * (V + 1)))
    ids, states, parent, succ, found, bad = {first: 0}, [first], [None], [], {}, set()
    labels, same, began = Counter(), {}, time.time()
    while len(succ) < len(states) < limit:
        i = len(succ)
        succ.append([])
        for label, fault, new in steps(states[i]) if i not in bad else ():
            labels[label[2:] if label[1] == " " else label] += 1
            j = ids.get(new)
            if j is None:
                db = tuple(same.setdefault(d, d) for d in new.db)
                new = new._replace(db=db, g=same.setdefault(new.g, new.g))
                j = ids[new] = len(states)
                states.append(new)
                parent.append((i, label))
                for name in broken(states[i], new):
                    found.setdefault(name, j)
                    bad.add(j)
            if not fault:
                succ[i].append(j)
    goal = [i for i in range(len(succ)) if i in bad or all(ver(x) > V for x in states[i].db)]
    whole = len(succ) == len(states)
    stuck = set(range(len(succ))) - inevitable(succ, goal) if whole else set()
    if stuck:
        found["I7 no model in the end"] = min([i for i in stuck if not succ[i]] or stuck)
    if long:
        end = f"{len(goal):,} of them finished, {time.time() - began:.0f} s"
        print(f"{len(states):,} states{'' if whole else ' (stopped)'}, {end}")
        told = {k for k in labels if k.isupper() or k.split()[-1] in ("voids", "other")}
        told |= {k for k in labels if "operators" in k}
        print("  reached: " + ", ".join(f"{k} {labels[k]:,}" for k in sorted(told)))
    for name, j in sorted(found.items()):
        trace = []
        while parent[j]:
            j, label = parent[j]
            trace.append(label)
        way = ": " + "; ".join(reversed(trace)) if long else ""
        print(f"  {name} ({len(trace)} steps){way}")
    return found


def main():
    global V, MAXA, CAP, SETS, REPLACE
    plain = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    for name, n in ("versions", 1), ("attempts", 3), ("cap", 2), ("sets", 2), ("limit", 5_000_000):
        p.add_argument(f"--{name}", type=int, default=n)
    p.add_argument("--replace", choices=["none", "one", "both"], default="none")
    p.add_argument("--without", nargs="*", default=[], choices=[*FIXES, "all"])
    p.add_argument("--mutants", action="store_true")
    a = p.parse_args()
    V, MAXA, CAP, SETS = a.versions, a.attempts, a.cap, (1, 3, 2)[: a.sets]
    if not a.mutants:
        REPLACE = ["none", "one", "both"].index(a.replace)
        ON.difference_update(FIXES if "all" in a.without else a.without)
        return 1 if search(a.limit) else 0
    missed = []
    for name, (what, REPLACE, hide) in MUTANTS.items():
        ON.clear()
        ON.update((set(FIXES) - set(hide)) | {name})
        print(f"{name}: {what}")
        missed += [] if search(a.limit, long=False) else [name]
    print("not caught:", missed or "none")
    return len(missed)


if __name__ == "__main__":
    sys.exit(main())
