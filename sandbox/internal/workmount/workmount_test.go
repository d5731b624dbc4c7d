package workmount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
)

func TestDecide(t *testing.T) {
	yes, no := func() bool { return true }, func() bool { return false }
	for _, tt := range []struct {
		name          string
		runner, owner ids
		allow         bool
		writable      func() bool
		want          identityPlan
		err           error
	}{
		{name: "root, other owner", runner: ids{0, 0}, owner: ids{1000, 1000}, want: identityPlan{command: commandIDs, files: ids{1000, 1000}, stage: true, idmap: true}},
		{name: "root, root's", runner: ids{0, 0}, owner: ids{0, 0}, want: identityPlan{command: commandIDs, files: ids{0, 0}, stage: true, idmap: true}},
		{name: "root, already the commands'", runner: ids{0, 0}, owner: commandIDs, want: identityPlan{command: commandIDs, files: commandIDs, stage: true, idmap: true}},
		{name: "root, group differs", runner: ids{0, 0}, owner: ids{10001, 5}, want: identityPlan{command: commandIDs, files: ids{10001, 5}, stage: true, idmap: true}},
		{name: "own", runner: ids{1000, 100}, owner: ids{1000, 1000}, want: identityPlan{command: ids{1000, 100}, files: ids{1000, 100}, lost: []string{LostFlags}}},
		{name: "another's", runner: ids{1000, 1000}, owner: ids{0, 0}, writable: yes, err: sandbox.ErrInvalid},
		{name: "another's, allowed", runner: ids{1000, 1000}, owner: ids{0, 0}, allow: true, writable: yes, want: identityPlan{
			command: ids{1000, 1000}, files: ids{1000, 1000},
			lost: []string{LostFlags, "the workspace belongs to uid 0, but files that commands make belong to uid 1000"},
		}},
		{name: "another's, allowed, not writable", runner: ids{1000, 1000}, owner: ids{0, 0}, allow: true, writable: no, err: sandbox.ErrInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decideIdentity(Identity{}, tt.runner, tt.owner, "/w", tt.allow, tt.writable)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(identityPlan{}, ids{})); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

// If the runtime maps owners, nothing is staged, commands have the identity that
// they ask for, and their files the owner's.
func TestRuntimeMaps(t *testing.T) {
	host := func(list []IDRange, inside int) int64 {
		for _, r := range list {
			if id := uint32(inside); id-r.Inside < r.Size {
				return int64(r.Host + id - r.Inside)
			}
		}
		return -1
	}
	other := Identity{UID: 70, GID: 71}
	for _, tt := range []struct {
		name                         string
		want                         Identity
		runner, owner                ids
		command, files, guest, third ids // the last three on the disk
	}{
		{"root", Identity{}, ids{0, 0}, ids{1000, 1001}, commandIDs, ids{1000, 1001}, ids{0, 0}, ids{5, 5}},
		{"root, root's", Identity{}, ids{0, 0}, ids{0, 0}, commandIDs, ids{0, 0}, commandIDs, ids{5, 5}},
		{"root, image's user", other, ids{0, 0}, ids{1000, 1001}, ids{70, 71}, ids{1000, 1001}, ids{0, 0}, ids{5, 5}},
		{"root, root inside", Identity{Root: true}, ids{0, 0}, ids{1000, 1001}, ids{0, 0}, ids{1000, 1001}, ids{1000, 1001}, ids{FirstID + 5, FirstID + 5}},
		{"user", Identity{}, ids{1000, 100}, ids{1000, 1001}, commandIDs, ids{1000, 100}, ids{1000, 100}, ids{-1, -1}},
		{"user, image's user", other, ids{1000, 100}, ids{1000, 100}, ids{70, 71}, ids{1000, 100}, ids{1000, 100}, ids{-1, -1}},
		{"user, root inside", Identity{Root: true}, ids{1000, 100}, ids{1000, 100}, ids{0, 0}, ids{1000, 100}, ids{1000, 100}, ids{-1, -1}},
	} {
		if tt.runner.uid == 0 && os.Geteuid() != 0 {
			continue // decideIdentity asks for this process's capabilities
		}
		tt.want.RuntimeMaps = true
		p, err := decideIdentity(tt.want, tt.runner, tt.owner, "/w", false, nil)
		if err != nil || p.stage || !p.idmap || p.command != tt.command || p.files != tt.files || !slices.Contains(p.lost, LostFlags) {
			t.Errorf("%s: %+v, %v", tt.name, p, err)
			continue
		}
		for what, id := range map[string]struct{ inside, disk ids }{
			"a command's": {tt.command, tt.files}, "the guest's": {ids{0, 0}, tt.guest}, "another's": {ids{5, 5}, tt.third},
		} {
			if u, g := host(p.maps.UIDs, id.inside.uid), host(p.maps.GIDs, id.inside.gid); u != int64(id.disk.uid) || g != int64(id.disk.gid) {
				t.Errorf("%s: %s file belongs to %d:%d, not %s", tt.name, what, u, g, id.disk)
			}
		}
		if u, g := host(p.scratch.UIDs, tt.command.uid), host(p.scratch.GIDs, tt.command.gid); u != int64(tt.runner.uid) || g != int64(tt.runner.gid) {
			t.Errorf("%s: a command's file in its home belongs to %d:%d, not %s", tt.name, u, g, tt.runner)
		}
	}
	if _, err := decideIdentity(Identity{RuntimeMaps: true}, ids{1000, 1000}, ids{0, 0}, "/w", false, nil); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("another's workspace: %v", err)
	}
}

func TestWithoutIDMap(t *testing.T) {
	cause := errors.New("the cause")
	p := identityPlan{command: commandIDs, files: ids{1000, 1001}, stage: true, idmap: true}
	got, err := p.withoutIDMap("/w", cause)
	if err != nil {
		t.Fatal(err)
	}
	if got.command != p.files || got.idmap || len(got.lost) != 1 {
		t.Errorf("plan %+v: want commands as the owner, and to say so", got)
	}
	p.files = ids{0, 0}
	if _, err := p.withoutIDMap("/w", cause); !errors.Is(err, sandbox.ErrUnsupported) || !errors.Is(err, cause) {
		t.Errorf("error %v for a directory of root's, want ErrUnsupported and the cause", err)
	}
}

// TestMapIDs checks that two ids change places, other ids stay, and nothing
// maps to the identities of other commands.
func TestMapIDs(t *testing.T) {
	const base = 50000
	for _, pair := range [][2]int64{
		{0, 10001},
		{1000, 10001},
		{10001, 10001},
		{10001, 10002},
		{65534, 10001},
		{lastID, 10001},
		{lastID - 1, 0},
		{base, 10001},
		{base + 1, 10001},
		{base + 7, 10001},
		{base + 15, 10001},
		{base + 16, 10001},
	} {
		ranges := idMap{owner: pair[0], command: pair[1], identities: base}.ranges()
		apply := func(id int64) int64 {
			for _, r := range ranges {
				if id >= r.disk && id < r.disk+r.size {
					return r.shown + id - r.disk
				}
			}
			return -1
		}
		isIdentity := func(id int64) bool { return id > base && id <= base+sandbox.MaxIdentity }
		var size int64
		for _, r := range ranges {
			size += r.size
			for _, id := range []int64{r.disk, r.disk + r.size/2, r.disk + r.size - 1} {
				if isIdentity(apply(id)) {
					t.Errorf("map(%d, %d): %d becomes the identity %d", pair[0], pair[1], id, apply(id))
				}
				if id != pair[0] && id != pair[1] && apply(id) != id {
					t.Errorf("map(%d, %d): third id %d becomes %d", pair[0], pair[1], id, apply(id))
				}
			}
		}
		if size != lastID+1-sandbox.MaxIdentity {
			t.Errorf("map(%d, %d) maps %d ids, want all but %d", pair[0], pair[1], size, sandbox.MaxIdentity)
		}
		if apply(pair[0]) != pair[1] || !isIdentity(pair[0]) && apply(pair[1]) != pair[0] {
			t.Errorf("map(%d, %d): they become %d and %d", pair[0], pair[1], apply(pair[0]), apply(pair[1]))
		}
	}
}

// TestGroupMaps checks that the map is one to one, the owner is the commands'
// group, and none of their supplementary groups is a group of the host.
func TestGroupMaps(t *testing.T) {
	const command, base = 1000, 50000
	groups := []int{4, 27, 44, 999, IDCount - 1}
	for _, owner := range []int64{0, 1, 4, 27, 1000, 10001, FirstID, FirstID + 4, FirstID + 27, FirstID + IDCount + 4, lastID} {
		ranges := idMap{owner: owner, command: command, identities: base, groups: groups}.ranges()
		var size int64
		seen := map[int64]bool{}
		for i, r := range ranges {
			size += r.size
			for _, other := range ranges[:i] {
				if r.disk < other.disk+other.size && other.disk < r.disk+r.size || r.shown < other.shown+other.size && other.shown < r.shown+r.size {
					t.Errorf("owner %d: %+v and %+v overlap", owner, r, other)
				}
			}
			if owner >= r.disk && owner < r.disk+r.size && r.shown+owner-r.disk != command {
				t.Errorf("the owner %d is %d inside", owner, r.shown+owner-r.disk)
			}
			for _, g := range groups {
				group := int64(g)
				if group < r.shown || group >= r.shown+r.size {
					continue
				}
				seen[group] = true
				if disk := r.disk + group - r.shown; disk < FirstID || disk == owner {
					t.Errorf("owner %d: group %d inside is group %d of the host", owner, g, disk)
				}
			}
		}
		if size != lastID+1-sandbox.MaxIdentity || len(seen) != len(groups) {
			t.Errorf("owner %d: %d ids and %d groups are mapped", owner, size, len(seen))
		}
	}
	many := make([]int, 32)
	for i := range many {
		many[i] = 30000 + 3*i
	}
	text := 0
	for _, r := range (idMap{owner: lastID, command: 0x7000_0000, identities: base, groups: many}).ranges() {
		text += len(fmt.Sprintln(r.disk, r.shown, r.size))
	}
	if text >= 4096 { // PAGE_SIZE
		t.Errorf("the map of %d groups has %d bytes", len(many), text)
	}
}

// TestNamespaceMaps checks that in a user namespace the owner is the commands'
// identity, the map is one to one, and on the disk only Caisson's ids have an
// id of the namespace: files of the host's users, and of an engine's other
// containers, belong to nobody inside.
func TestNamespaceMaps(t *testing.T) {
	for _, base := range []int{FirstID, 1 << 16, 100_000, 300_000, FirstID - IDCount, FirstID + IDCount} {
		for _, want := range []Identity{{Root: true}, {}, {UID: 33, GID: 33, Groups: []int{4, 27, 2347}}} {
			want.Base = Base{base, base}
			command := int64(want.command().uid)
			for _, owner := range []int{0, 1000, 10001, base, base + 33, base + 10001, FirstID, FirstID + 33, FirstID + 10001, lastID} {
				uids, gids := idMaps{ids{owner, owner}, want}.ranges()
				for name, ranges := range map[string][]idRange{"uids": uids, "gids": gids} {
					disk := slices.Repeat([]int64{-1}, IDCount) // by what the container has
					var size, inside int64
					for i, r := range ranges {
						size += r.size
						for _, other := range ranges[:i] {
							if r.disk < other.disk+other.size && other.disk < r.disk+r.size || r.shown < other.shown+other.size && other.shown < r.shown+r.size {
								t.Fatalf("%s of %+v, owner %d: %+v and %+v overlap", name, want, owner, r, other)
							}
						}
						for id := max(r.shown, int64(base)); id < min(r.shown+r.size, int64(base)+IDCount); id++ {
							disk[id-int64(base)] = r.disk + id - r.shown
							inside++
						}
					}
					hidden := int64(sandbox.MaxIdentity)
					if want.Root {
						hidden = 0
					}
					if size != lastID+1-hidden || inside != IDCount-hidden {
						t.Errorf("%s of %+v, owner %d: %d ids are mapped, %d of them inside", name, want, owner, size, inside)
					}
					for id, on := range disk {
						if int64(id) == command && on != int64(owner) || int64(id) != command && on != -1 && (on < FirstID || on >= FirstID+IDCount) {
							t.Fatalf("%s of %+v, owner %d: %d inside is %d on the disk", name, want, owner, id, on)
						}
					}
				}
			}
		}
	}
}

// TestForeignBase checks that an engine's user namespace contains no ids of
// users or of the workspace's owner.
func TestForeignBase(t *testing.T) {
	for base, ok := range map[Base]bool{
		{}: false, {1000, 1000}: false, {100_000, 1000}: false, {IDCount, IDCount}: true, {300_000, 400_000}: true, OwnBase: false,
		{300_000, FirstID + 1}: false, {FirstID - 1, 300_000}: false, {lastID - 5, lastID - 5}: false,
	} {
		if err := base.Check(); (err == nil) != ok {
			t.Errorf("%+v: %v", base, err)
		}
	}
	want := Identity{Base: Base{300_000, 400_000}}
	for owner, ok := range map[ids]bool{
		{0, 0}: true, {1000, 1000}: true, {300_000, 1000}: false, {365_535, 1000}: false, {365_536, 1000}: true, {1000, 400_007}: false, {400_007, 1000}: true,
	} {
		p, err := decideIdentity(want, ids{0, 0}, owner, "/w", false, nil)
		if ok != (err == nil) || err != nil && !errors.As(err, new(*sandbox.IncapableError)) {
			t.Errorf("a workspace of %v: %+v, %v", owner, p, err)
		}
	}
	p := identityPlan{want: want, command: commandIDs, files: commandIDs}
	if _, err := p.withoutIDMap("/w", errNoIDMap); !errors.As(err, new(*sandbox.IncapableError)) || !strings.Contains(err.Error(), "userns-remap") {
		t.Errorf("without an id map: %v", err)
	}
	p.want = Identity{Root: true, Base: OwnBase}
	if _, err := p.withoutIDMap("/w", errNoIDMap); !errors.Is(err, sandbox.ErrUnsupported) || strings.Contains(err.Error(), "userns-remap") {
		t.Errorf("without an id map in Caisson's own namespace: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

func missing(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left (%v)", path, err)
	}
}

// TestRootMaps checks that the id maps for root inside are one to one, root is
// the owner, and no other id inside is an id of the host's users.
func TestRootMaps(t *testing.T) {
	for _, owner := range []int{0, 1, 1000, 65534, FirstID, FirstID + 1, FirstID + 33, FirstID + IDCount - 1, FirstID + IDCount, lastID} {
		uids, gids := idMaps{ids{owner, owner}, Identity{Root: true}}.ranges()
		for name, ranges := range map[string][]idRange{"uids": uids, "gids": gids} {
			for i, a := range ranges {
				if a.size <= 0 || a.disk < 0 || a.disk+a.size-1 > lastID || a.shown+a.size-1 > lastID {
					t.Errorf("owner %d, %s: range %+v", owner, name, a)
				}
				for _, b := range ranges[:i] {
					if a.disk < b.disk+b.size && b.disk < a.disk+a.size || a.shown < b.shown+b.size && b.shown < a.shown+a.size {
						t.Errorf("owner %d, %s: %+v and %+v overlap", owner, name, a, b)
					}
				}
				root := a.shown == 0
				if root && (a.disk != int64(owner) || a.size != 1) || !root && a.shown < IDCount && a.disk < FirstID {
					t.Errorf("owner %d, %s: inside %d are %d of the host (%d)", owner, name, a.shown, a.disk, a.size)
				}
				if name == "uids" && !root && (a.disk < FirstID || a.disk+a.size > FirstID+IDCount) {
					t.Errorf("owner %d: users %d of the host are open inside (%d)", owner, a.disk, a.size)
				}
			}
		}
	}
	if p, err := (identityPlan{want: Identity{Root: true}, files: ids{1000, 1000}}).withoutIDMap("/w", errors.New("the cause")); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("without an id map: %+v, %v", p, err)
	}
}
