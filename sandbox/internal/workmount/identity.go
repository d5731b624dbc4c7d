package workmount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

type ids struct{ uid, gid int }

// commandIDs is the identity of commands if Caisson can choose it.
var commandIDs = ids{sandbox.CommandUID, sandbox.CommandGID}

// Identity is the identity of commands in a container. The zero value means
// sandbox.CommandUID and CommandGID.
type Identity struct {
	// UID and GID apply if Caisson can choose the identity.
	UID, GID int
	// Groups are the commands' supplementary groups, below IDCount. An id map
	// keeps them from giving access to the workspace's files.
	Groups []int
	// Root means uid and gid 0. It needs id-mapped mounts.
	Root bool
	// Base is the base of the container's user namespace, if it has one. That
	// needs id-mapped mounts.
	Base Base
	// RuntimeMaps reports that the runtime maps the owners of files itself, by
	// Bind.Maps, so that nothing is mounted here.
	RuntimeMaps bool
}

// IDRange maps Size ids in the container, from Inside on, to those on the disk,
// from Host on.
type IDRange struct{ Inside, Host, Size uint32 }

// IDMaps are maps of the owners of a mount's files, for a runtime. The first
// range that has an id counts. No ranges map every id to itself.
type IDMaps struct{ UIDs, GIDs []IDRange }

// Base is the host's user and group that are 0 in a container's user namespace.
// The namespace has the IDCount ids from there on. The zero value means that
// the container has no user namespace.
type Base struct{ UID, GID int }

// The ids on disk of a container's other users, and the host's ids of
// containers in Caisson's own user namespaces. They are the same for all
// sessions, so files that a session leaves have the same owners in the next. No
// system hands them out: systemd's UIDS-GIDS lists them as unused, and they are
// above sssd's default range (up to 2000200000).
const (
	FirstID = 0x7800_0000
	IDCount = 1 << 16
)

// OwnBase is the base of user namespaces that Caisson makes.
var OwnBase = Base{FirstID, FirstID}

// IsNamespace reports whether the container has a user namespace.
func (b Base) IsNamespace() bool { return b != Base{} }

// isForeign reports whether the engine chose the user namespace, not Caisson.
func (b Base) isForeign() bool { return b.IsNamespace() && b != OwnBase }

// contains reports whether i's user or group is in the namespace.
func (b Base) contains(i ids) bool {
	in := func(id, first int) bool { return id >= first && id < first+IDCount }
	return b.IsNamespace() && (in(i.uid, b.UID) || in(i.gid, b.GID))
}

// Check returns an error if a user namespace that an engine chose may contain
// ids of this machine's users or of Caisson.
func (b Base) Check() error {
	for _, first := range []int64{int64(b.UID), int64(b.GID)} {
		switch {
		case first < IDCount:
			return fmt.Errorf("its ids begin with %d, and users of this machine have such ids: use a range above %d", first, IDCount)
		case first > FirstID-IDCount && first < FirstID+IDCount || first > lastID-IDCount:
			return fmt.Errorf("its ids begin with %d, which Caisson or the system uses: use a range below %d", first, FirstID-IDCount)
		}
	}
	return nil
}

func (i Identity) command() ids {
	if i.UID == 0 && i.GID == 0 && !i.Root {
		return commandIDs
	}
	return ids{i.UID, i.GID}
}

// UsualMounts returns Mounts with only the commands' identity set, to the one
// that nearly every workspace has.
func UsualMounts() *Mounts {
	id := commandIDs
	if os.Geteuid() != 0 {
		id = ids{os.Geteuid(), os.Getegid()}
	}
	return &Mounts{CommandUID: id.uid, CommandGID: id.gid}
}

func (i ids) String() string { return fmt.Sprintf("%d:%d", i.uid, i.gid) }

// identityPlan relates a workspace's owner to the commands' identity.
type identityPlan struct {
	want    Identity
	command ids  // in the container
	files   ids  // owner of new files on the host
	stage   bool // make our own mounts
	idmap   bool
	lost    []string
	// maps are for the workspace and scratch for scratch directories, if
	// want.RuntimeMaps is set.
	maps, scratch IDMaps
	oneOwner      bool // the maps know one user and group only
}

// decideIdentity implements the table of the package comment. It calls writable
// only if the answer matters.
func decideIdentity(want Identity, runner, owner ids, path string, callerOwns bool, writable func() bool) (identityPlan, error) {
	root := runner.uid == 0 && (!want.RuntimeMaps || mayChown())
	p, err := decideOwner(want, runner, owner, root, path, callerOwns, writable)
	if err != nil || !want.RuntimeMaps {
		return p, err
	}
	p.want, p.command, p.stage, p.idmap = want, want.command(), false, true
	p.maps = idMaps{p.files, want}.forRuntime(root)
	p.scratch = idMaps{runner, want}.forRuntime(root)
	p.oneOwner = !root
	if root {
		p.lost = append(p.lost, LostFlags)
	}
	return p, nil
}

// mayChown reports whether this process may give files to other users, as root
// may unless its capabilities were dropped.
func mayChown() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_CHOWN) != 0
}

func decideOwner(want Identity, runner, owner ids, root bool, path string, callerOwns bool, writable func() bool) (identityPlan, error) {
	switch {
	case root && want.Base.isForeign() && want.Base.contains(owner):
		return identityPlan{}, &sandbox.IncapableError{
			Request: "workspace " + path, Reason: fmt.Sprintf("it belongs to %s, and the engine's containers have the ids from %d on (userns-remap)", owner, want.Base.UID),
			Hint: "use the gvisor or the runc backend, or give the directory to another user",
		}
	case root:
		command := want.command()
		return identityPlan{want: want, command: command, files: owner, stage: true, idmap: true}, nil
	case owner.uid == runner.uid:
		return identityPlan{command: runner, files: runner, lost: []string{LostFlags}}, nil
	case callerOwns && writable():
		return identityPlan{command: runner, files: runner, lost: []string{
			LostFlags,
			fmt.Sprintf("the workspace belongs to uid %d, but files that commands make belong to uid %d", owner.uid, runner.uid),
		}}, nil
	case callerOwns:
		return identityPlan{}, fmt.Errorf("workspace %s: %w: it belongs to uid %d and uid %d can't write to it: run as its owner or as root",
			path, sandbox.ErrInvalid, owner.uid, runner.uid)
	}
	return identityPlan{}, fmt.Errorf("workspace %s: %w: it belongs to uid %d, and files that uid %d makes in it would not: "+
		"run as its owner or as root, or let new files belong to the caller", path, sandbox.ErrInvalid, owner.uid, runner.uid)
}

// LostFlags is in Mounts.Lost if sources are not staged. A backend removes it
// if its runtime sets the flags and shows them set.
const LostFlags = "the workspace and other directories are mounted without nosuid and nodev, because this process can't set them"

// withoutIDMap returns root's plan if the kernel or the workspace's file system
// has no id-mapped mounts: commands run as the workspace's owner, which must
// not be root.
func (p identityPlan) withoutIDMap(path string, cause error) (identityPlan, error) {
	if p.want.Root {
		return identityPlan{}, fmt.Errorf("workspace %s: %w: it can't be id-mapped (%w), and files of commands that are root would belong to root: "+
			"use user owner, or Linux 5.12 or newer and a file system with id-mapped mounts", path, sandbox.ErrUnsupported, cause)
	}
	if p.want.Base.isForeign() {
		return identityPlan{}, &sandbox.IncapableError{
			Request: "workspace " + path, Reason: fmt.Sprintf("it can't be id-mapped (%v), and the engine remaps the ids of containers (userns-remap)", cause),
			Hint: "use the gvisor or the runc backend, an engine without remapping, or a file system with id-mapped mounts",
		}
	}
	if p.want.UID != 0 && (p.files != p.command || len(p.want.Groups) > 0) {
		return identityPlan{}, fmt.Errorf("workspace %s: %w: it can't be id-mapped (%w), so that commands can't run as user %s: "+
			"use user owner, or Linux 5.12 or newer and a file system with id-mapped mounts", path, sandbox.ErrUnsupported, cause, p.command)
	}
	if p.files.uid == 0 {
		hint := "use Linux 5.12 or newer and a file system with id-mapped mounts"
		if errors.Is(cause, fs.ErrPermission) {
			hint = "run where this process may mount, or as an ordinary user who owns the directory"
		}
		return identityPlan{}, fmt.Errorf("workspace %s: %w: it belongs to root, commands never run as root, and it can't be id-mapped (%w): "+
			"give the directory to another user, or %s", path, sandbox.ErrUnsupported, cause, hint)
	}
	p.command, p.idmap = p.files, false
	p.lost = append(p.lost, fmt.Sprintf("commands run as the workspace's owner, uid %d, because it can't be id-mapped: %v", p.files.uid, cause))
	return p, nil
}

// idRange maps size ids on disk, from disk on, to those that the mount shows, from
// shown on.
type idRange struct{ disk, shown, size int64 }

// lastID is the largest id: (uid_t)-1 is invalid, see user_namespaces(7).
const lastID = 1<<32 - 2

// idMap describes a map of the full range, of users or of groups.
type idMap struct {
	// owner, on disk, becomes command, as the host's kernel sees it.
	owner, command int64
	// identities precedes the identities of commands other than the agent's.
	identities int64
	// first is the first id of the container's user namespace, or 0.
	first int64
	// groups are the commands' supplementary groups. No file has them on disk.
	groups []int
}

// show returns what an id becomes unless it is the owner, the command or one of
// its groups. A user namespace's ids change places with those from FirstID on,
// so files of an engine's other containers belong to nobody inside. It is its
// own inverse.
func (m idMap) show(id int64) int64 {
	switch {
	case m.first == 0:
	case id >= m.first && id < m.first+IDCount:
		return id - m.first + FirstID
	case id >= FirstID && id < FirstID+IDCount:
		return id - FirstID + m.first
	}
	return id
}

// ranges maps the full range to itself, except that owner and command change
// places, and that no id maps to the identities of commands other than the
// agent's. Those could otherwise create files that belong to an unknown user on
// the host; to them, files of such users belong to the kernel's overflow user.
// Apart from them the map is its own inverse. A map with only two entries would
// leave files of all other ids without an owner, and a one-way map could not be
// inverted.
//
// Each of groups changes places with an unused id. Otherwise commands would get
// the access of the host's group with that number. A user namespace's ids are
// unused already.
func (m idMap) ranges() []idRange {
	shown := map[int64]int64{m.owner: m.command}
	if was := m.show(m.command); was != m.owner {
		shown[was] = m.show(m.owner)
	}
	for _, g := range m.groups {
		if m.first == 0 {
			m.hideGroup(shown, int64(g))
		}
	}
	starts := []int64{0}
	for id := range shown {
		starts = append(starts, id, id+1)
	}
	if m.first != 0 {
		starts = append(starts, m.first, m.first+IDCount, FirstID, FirstID+IDCount)
	}
	slices.Sort(starts)
	starts = slices.DeleteFunc(slices.Compact(starts), func(id int64) bool { return id > lastID })
	hidden, end := m.identities+1, m.identities+1+sandbox.MaxIdentity
	var out []idRange
	for i, start := range starts {
		next := int64(lastID + 1)
		if i+1 < len(starts) {
			next = starts[i+1]
		}
		as, ok := shown[start]
		if !ok {
			as = m.show(start)
		}
		r := idRange{start, as, next - start}
		below := min(r.size, max(0, hidden-r.shown))
		above := min(r.size, max(0, r.shown+r.size-end))
		if below > 0 {
			out = append(out, idRange{r.disk, r.shown, below})
		}
		if above > 0 {
			out = append(out, idRange{r.disk + r.size - above, r.shown + r.size - above, above})
		}
	}
	return out
}

// hideGroup lets a group change places with an unused id in shown.
func (m idMap) hideGroup(shown map[int64]int64, group int64) {
	unused := FirstID + group
	for unused == m.owner || unused == m.command {
		unused += IDCount
	}
	for id, as := range shown {
		switch as {
		case group:
			shown[id] = unused
		case unused:
			shown[id] = group
		}
	}
	for id, as := range map[int64]int64{group: unused, unused: group} {
		if _, moved := shown[id]; !moved {
			shown[id] = as
		}
	}
}

// idMaps are the id maps of a mount on which commands see owner as themselves.
type idMaps struct {
	owner ids
	want  Identity
}

func (m idMaps) ranges() (uids, gids []idRange) {
	if m.want.Root && !m.want.Base.IsNamespace() {
		return rootIDs(int64(m.owner.uid)), append(rootIDs(int64(m.owner.gid)), otherIDs(int64(m.owner.gid))...)
	}
	command, identities := m.want.command(), int64(lastID) // root has no other identities
	if !m.want.Root {
		identities = int64(sandbox.IdentityBase(command.uid, command.gid))
	}
	uid, gid := int64(m.want.Base.UID), int64(m.want.Base.GID)
	return idMap{owner: int64(m.owner.uid), command: uid + int64(command.uid), identities: uid + identities, first: uid}.ranges(),
		idMap{owner: int64(m.owner.gid), command: gid + int64(command.gid), identities: gid + identities, first: gid, groups: m.want.Groups}.ranges()
}

// forRuntime returns the maps for a runtime. Unless it acts as root, every file
// belongs to the owner: those that the guest makes as the container's root, too.
func (m idMaps) forRuntime(root bool) IDMaps {
	if !root {
		one := func(command, owner int) []IDRange {
			list := []IDRange{{Inside: uint32(command), Host: uint32(owner), Size: 1}}
			if command != 0 {
				list = append(list, IDRange{Inside: 0, Host: uint32(owner), Size: 1})
			}
			return list
		}
		command := m.want.command()
		return IDMaps{one(command.uid, m.owner.uid), one(command.gid, m.owner.gid)}
	}
	convert := func(ranges []idRange) (list []IDRange) {
		for _, r := range ranges {
			list = append(list, IDRange{Inside: uint32(r.shown), Host: uint32(r.disk), Size: uint32(r.size)})
		}
		return list
	}
	uids, gids := m.ranges()
	return IDMaps{convert(uids), convert(gids)}
}

// rootIDs is the map for a sandbox with its own kernel, whose gofer is root on
// the host but acts with the commands' ids. Root inside is the owner, and other
// users inside are those from [FirstID], as with a user namespace. Other ids
// are unmapped: the kernel then shows overflow ids and refuses changes even to
// the host's root, whatever its capabilities.
func rootIDs(owner int64) []idRange {
	out := []idRange{{owner, 0, 1}}
	first, last := int64(FirstID+1), int64(FirstID+IDCount-1)
	if owner < first || owner > last {
		return append(out, idRange{first, 1, last - first + 1})
	}
	for _, r := range []idRange{{first, 1, owner - first}, {owner + 1, owner + 1 - FirstID, last - owner}} {
		if r.size > 0 {
			out = append(out, r)
		}
	}
	return out
}

// otherIDs returns ranges to add to rootIDs for groups: the host's other ids
// except 0, as ids above a container's. The kernel refuses changes to a file
// with an unmapped group, even to the file's owner.
func otherIDs(owner int64) []idRange {
	var out []idRange
	const shift = FirstID + IDCount
	add := func(first, end int64) {
		if first < end {
			out = append(out, idRange{first, first + shift, end - first})
		}
	}
	add(1, min(owner, FirstID))
	add(max(owner+1, 1), FirstID)
	return out
}
