package workmount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/caisson-run/caisson/sandbox"
)

// ids is a user and a group.
type ids struct{ uid, gid int }

// commandIDs is the identity of commands if Caisson can choose it.
var commandIDs = ids{sandbox.CommandUID, sandbox.CommandGID}

// Identity is the identity of commands in a container. The zero value is that of
// the contract, 10001:10001.
type Identity struct {
	// UID and GID are used if Caisson can choose the identity.
	UID, GID int
	// Groups are the supplementary groups of commands, below IDCount. They mean
	// nothing to the workspace's files, which takes an id map.
	Groups []int
	// Root reports that they are uid and gid 0. Only id-mapped mounts are made
	// for them.
	Root bool
	// Base is that of the container's user namespace, if it has one. Only
	// id-mapped mounts are made for it.
	Base Base
}

// Base is the user and the group of the host that are 0 in a container's user
// namespace; its ids up to IDCount-1 follow. The zero value means that the
// container has no user namespace.
type Base struct{ UID, GID int }

// The ids on the disk of users of a container other than the commands' own, and
// the host's ids of containers whose user namespace Caisson makes. They are
// the same for all sessions, so that what a session leaves has the same owners
// in the next. No system hands them out: systemd's UIDS-GIDS lists them as
// unused, and they lie above what sssd maps to by default (2000200000).
const (
	FirstID = 0x7800_0000
	IDCount = 1 << 16
)

// OwnBase is the base of user namespaces that Caisson makes.
var OwnBase = Base{FirstID, FirstID}

// IsNamespace reports whether the container has a user namespace.
func (b Base) IsNamespace() bool { return b != Base{} }

// isForeign reports whether it is a user namespace that Caisson does not make.
func (b Base) isForeign() bool { return b.IsNamespace() && b != OwnBase }

// contains reports whether a user or its group is one of the namespace's.
func (b Base) contains(i ids) bool {
	in := func(id, first int) bool { return id >= first && id < first+IDCount }
	return b.IsNamespace() && (in(i.uid, b.UID) || in(i.gid, b.GID))
}

// Check returns an error unless the ids of a user namespace that an engine chose
// are neither those of users of this machine nor Caisson's own.
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

// UsualMounts returns mounts with the identity of commands that a workspace
// nearly always has, and nothing else.
func UsualMounts() *Mounts {
	id := commandIDs
	if os.Geteuid() != 0 {
		id = ids{os.Geteuid(), os.Getegid()}
	}
	return &Mounts{CommandUID: id.uid, CommandGID: id.gid}
}

func (i ids) String() string { return fmt.Sprintf("%d:%d", i.uid, i.gid) }

// identityPlan relates a workspace's owner and the identity of commands.
type identityPlan struct {
	want    Identity
	command ids  // in the container
	files   ids  // whom new files belong to on the host
	stage   bool // mounts of our own
	idmap   bool
	lost    []string
}

// decideIdentity implements the table of the package comment. writable is
// called only if the answer matters.
func decideIdentity(want Identity, runner, owner ids, path string, callerOwns bool, writable func() bool) (identityPlan, error) {
	switch {
	case runner.uid == 0 && want.Base.isForeign() && want.Base.contains(owner):
		return identityPlan{}, &sandbox.IncapableError{
			Request: "workspace " + path, Reason: fmt.Sprintf("it belongs to %s, and the engine's containers have the ids from %d on (userns-remap)", owner, want.Base.UID),
			Hint: "use the gvisor or the runc backend, or give the directory to another user",
		}
	case runner.uid == 0:
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

// LostFlags is in Mounts.Lost if sources are not staged. A backend whose
// runtime sets the flags itself, and sees them set, removes it.
const LostFlags = "the workspace and other directories are mounted without nosuid and nodev, because only root can set them"

// withoutIDMap returns the plan for root if the kernel, or the workspace's file
// system, has no id-mapped mounts: commands then run as the workspace's owner,
// which must not be root.
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

// idRange maps size ids that begin at inside (on disk) to outside (as the mount
// shows them).
type idRange struct{ inside, outside, size int64 }

// lastID is the largest id; (uid_t)-1 is none, see user_namespaces(7).
const lastID = 1<<32 - 2

// idMap is the input of a map of the full range, of users or of groups.
type idMap struct {
	// owner, on the disk, becomes command, as the host's kernel sees it.
	owner, command int64
	// identities precedes the identities of other commands than the agent's.
	identities int64
	// first is the first id of the container's user namespace, 0 without one.
	first int64
	// groups are the supplementary groups of commands. They have none on the disk.
	groups []int
}

// show returns what an id becomes for all but the owner, the command and its
// groups. The ids of a user namespace change places with those from FirstID on:
// files of an engine's other containers belong to nobody inside. It is its own
// inverse.
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
// places and that nothing is mapped to the identities of other commands than the
// agent's. They can't create files through the mount, which would
// belong to an unknown user on the host, and files of those users seem to be the
// kernel's overflow user's. The map is its own inverse but for that. A map with
// two entries would leave files of all third ids without an owner, and a one-way
// map could not be inverted.
//
// Each of groups changes places with an unused id, as otherwise commands
// could do with files of a group of the host what its members can. In a user
// namespace they are such ids already.
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
		below := min(r.size, max(0, hidden-r.outside))
		above := min(r.size, max(0, r.outside+r.size-end))
		if below > 0 {
			out = append(out, idRange{r.inside, r.outside, below})
		}
		if above > 0 {
			out = append(out, idRange{r.inside + r.size - above, r.outside + r.size - above, above})
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

// idMaps is the input of the id maps of a mount: which of its owners commands
// see as themselves.
type idMaps struct {
	owner ids
	want  Identity
}

// ranges returns the maps of uids and of gids.
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

// rootIDs is the map for a kernel of the sandbox's own, whose gofer is root of the
// host and acts with the ids that commands have. Root inside is the owner, and
// other users inside are those of [FirstID], as they are with a user namespace. All
// other ids are unmapped: the kernel then refuses changes to root of the host too,
// whatever its capabilities, and shows overflow ids.
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

// otherIDs adds to rootIDs the other ids of the host except 0, as ids above those
// of a container. It is for groups: the kernel refuses changes to a file whose
// group is unmapped, even to its owner.
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
