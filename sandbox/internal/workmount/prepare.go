package workmount

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

// BackendOptions are the same for all workspaces of a backend.
type BackendOptions struct {
	// StateDir is Caisson's state directory. A workspace that is, contains or
	// lies in it is refused, unless it lies in sandbox.WorkspacesDir.
	StateDir string
	// Protect names more directories, such as the user's home. A workspace that
	// is or contains one of them is refused. Missing ones are ignored.
	Protect []string
	// EngineSocket is the path of the engine's socket, or "". A further mount
	// must not contain it.
	EngineSocket string
	// EngineMounts reports that an engine can mount an overlay if this process
	// may not: Prepare then returns a [Volume]. Otherwise it refuses the
	// overlay.
	EngineMounts bool
	// RuntimeJoins reports that the runtime can be started with
	// [MountNamespace.WrapCommand], if this process may mount only in its own
	// user namespace.
	RuntimeJoins bool
}

// Options configures [Prepare]. Workspace, Dir, StateDir, Cleanup, Holder,
// UserNamespaces and Log are required.
type Options struct {
	BackendOptions
	// Workspace is the directory, which the caller keeps open until after
	// Close.
	Workspace sandbox.Workspace
	// Git is the protection of the repository; "" means read-only.
	Git sandbox.GitMode
	// Further are the further mounts, parents first. The runtime mounts tmpfs;
	// Prepare only makes tmpfs mount points in scratch directories.
	Further []sandbox.Mount
	// Dir is the session's own directory, below StateDir.
	Dir string
	// Cleanup is the session's cleanup list. Mounts, directories and
	// placeholders are added to it before they are made.
	Cleanup *ownership.CleanupList
	// Holder is an executable that is started and killed before its first
	// instruction, to open a user namespace: the guest's binary.
	Holder string
	// UserNamespaces keeps user namespaces for the next workspace.
	UserNamespaces *UserNamespaces
	// Identity is the commands' identity.
	Identity Identity
	// CallerOwnsFiles accepts that new files belong to the user who runs
	// Caisson although another owns the workspace.
	CallerOwnsFiles bool
	// Log receives errors that can't be returned.
	Log *zap.Logger

	attachLayers bool // see stager
}

func (o Options) isOverlay() bool { return o.Workspace.Mode == sandbox.ModeOverlay }

func (o Options) isCopy() bool { return o.Workspace.Mode == sandbox.ModeCopy }

// Bind is a bind mount of a container, not recursive and with private
// propagation.
type Bind struct {
	// Source is an absolute host path, Target one in the container. Mount the
	// binds in their order: a later one may lie in an earlier one.
	Source, Target string
	ReadOnly       bool
	Dir            bool
	// Device and Inode are the source's, as stat(2) returns them on the host. An
	// engine's [Volume] has no source, and its device is not known.
	Device, Inode uint64
	// Maps are the owners' maps, if Identity.RuntimeMaps was set.
	Maps IDMaps
	// Layers, if any, are the layers of an overlay that the guest mounts at
	// Target, the writable one first and the original last. Their targets lie in
	// wire.LayersDir. The bind itself has no source then.
	Layers []Bind
	// Place is where to mount the source if Target lies in an overlay that the
	// guest mounts: the guest then mounts it at Target.
	Place string
	// Private reports whether the source lies below Options.Dir, where no other
	// process can replace it.
	Private bool
}

// Mounts are the mounts of one workspace. The caller of [Prepare] must call
// [Mounts.Close]. They are safe for concurrent use.
type Mounts struct {
	// Binds are the workspace's mounts, its own directory first.
	Binds []Bind
	// Further are the binds of Options.Further, in order.
	Further []Bind
	// Path is the workspace's host path without symlinks, for messages.
	Path string
	// Target is the workspace's path in the container.
	Target string
	// CommandUID and CommandGID are the commands' identity in the container.
	CommandUID, CommandGID int
	// OwnerUID and OwnerGID own, on the host, files that commands make.
	OwnerUID, OwnerGID int
	// Mode is the workspace's. In ModeCopy the first of Binds has no source:
	// the container mounts its own file system there.
	Mode sandbox.WorkspaceMode
	// Namespace is the mount namespace in which to start the runtime, so that
	// it sees the overlays that are mounted there; nil if none are.
	Namespace *MountNamespace
	// Volume is the overlay that an engine must mount instead of the first of
	// Binds; nil if that has a source.
	Volume   *Volume
	IDMapped bool
	// Lost describes the missing protections, one sentence each.
	Lost []string

	cleanup *cleanup
	scratch map[string]string // host paths by target
}

// Prepare checks the workspace and makes what its mounts need. After an error
// nothing is left. It returns ErrInvalid for a workspace that it refuses, and
// ErrUnsupported if this system can't mount it so that its files keep their
// owner.
func Prepare(ctx context.Context, o Options) (*Mounts, error) {
	switch w := o.Workspace; {
	case w.Mode != "" && w.Mode != sandbox.ModeBind && !w.Mode.KeepsChanges():
		return nil, fmt.Errorf("workspace %s: %w: mode %q", w.Path, sandbox.ErrInvalid, w.Mode)
	case w.Mode.KeepsChanges() && !filepath.IsAbs(w.Layers):
		return nil, fmt.Errorf("workspace %s: %w: mode %s needs a directory for its layers, %q is no absolute path", w.Path, sandbox.ErrInvalid, w.Mode, w.Layers)
	}
	p, err := prepareMounts(ctx, o)
	if err != nil {
		return nil, err
	}
	p.Mode = cmp.Or(o.Workspace.Mode, sandbox.ModeBind)
	return p, nil
}

// ScratchPath returns the host path of the scratch directory at target.
func (p *Mounts) ScratchPath(target string) string { return p.scratch[target] }

// IsInside reports whether a bind is the workspace or in it. The repository of
// a linked worktree is not.
func (p *Mounts) IsInside(b Bind) bool {
	return b.Target == p.Target || strings.HasPrefix(b.Target, p.Target+"/")
}

// RemoveStaging removes the staging mounts. Call it once the container runs and
// has its own mounts. A second call does nothing.
func (p *Mounts) RemoveStaging() error { return p.cleanup.removeStaging() }

// Close removes everything that Prepare made, except placeholders that were
// changed. Call it when the container is gone. It is idempotent. After an error
// it may be called again, and anything left stays in the cleanup list.
func (p *Mounts) Close(ctx context.Context) error {
	if err := p.cleanup.closeAll(ctx); err != nil {
		return fmt.Errorf("close workspace mounts: %w", err)
	}
	return nil
}

func prepareMounts(ctx context.Context, o Options) (_ *Mounts, err error) {
	path, err := resolvedPath(o.Workspace.Dir)
	if err != nil {
		return nil, err
	}
	work, err := examinePlace(o.Workspace.Dir, "workspace "+path)
	if err != nil {
		return nil, err
	}
	if err := work.checkProtected(o, sandbox.WorkspacesDir(o.StateDir)); err != nil {
		return nil, err
	}
	mounts, err := listSubmounts(work.what, path, o.Workspace.Submounts)
	if err != nil {
		return nil, err
	}
	further, err := examineFurther(o, work)
	if errors.Is(err, sandbox.ErrInvalid) {
		err = &sandbox.MountError{Err: err}
	}
	if err != nil {
		return nil, err
	}
	if o.Workspace.Mode.KeepsChanges() && len(mounts) > 0 {
		return nil, fmt.Errorf("workspace %s: %w: other file systems are mounted in it (%s), which mode %s would not show: unmount them, or use bind mode",
			path, sandbox.ErrUnsupported, strings.Join(mounts, ", "), o.Workspace.Mode)
	}
	p, plan, err := newMounts(o, path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close(context.WithoutCancel(ctx)))
		}
	}()
	defer o.openNamespaceAhead(plan)()
	p.cleanup.further = further
	if err := p.makeScratch(o.Further); err != nil {
		return nil, err
	}
	if err := p.prepareFurther(ctx, o, plan); err != nil {
		return nil, err
	}
	if o.isCopy() {
		if err := p.prepareCopy(ctx, o, plan); err != nil {
			return nil, err
		}
		return p, nil
	}
	if o.isOverlay() {
		if err := p.prepareOverlay(ctx, o, plan); err != nil {
			return nil, err
		}
		return p, nil
	}
	var list []guard
	if !o.Workspace.Unguarded {
		var lost []string
		if list, lost, err = listGuards(o.Workspace, path, o.Git); err != nil {
			return nil, fmt.Errorf("workspace %s: %w", path, err)
		}
		p.Lost = append(p.Lost, lost...)
	}
	if err := p.reserveNames(ctx, o.Workspace.Dir, p.Path, list, plan); err != nil {
		return nil, err
	}
	if list, err = linkWorktrees(p, list, plan); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("prepare workspace: %w", err)
	}
	wanted := []guard{{name: "."}}
	for _, m := range mounts {
		wanted = append(wanted, guard{name: m, isMount: true})
	}
	if err := p.bindWanted(o, plan, append(wanted, list...)); err != nil {
		return nil, err
	}
	return p, nil
}

// openNamespaceAhead starts making the user namespace of the id map, so that
// names are reserved meanwhile. It ignores errors: stageAll will meet them
// again. The caller must call wait.
func (o Options) openNamespaceAhead(decided identityPlan) (wait func()) {
	if !decided.idmap || !decided.stage {
		return func() {}
	}
	var made sync.WaitGroup
	made.Go(func() {
		if f, err := o.UserNamespaces.openFor(o.Holder, idMaps{decided.files, o.Identity}); err == nil {
			_ = f.Close() // one is kept
		}
	})
	return made.Wait
}

// newMounts decides on the identities and opens the session's directory.
func newMounts(o Options, path string) (*Mounts, identityPlan, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(o.Workspace.Dir.Fd()), &st); err != nil {
		return nil, identityPlan{}, fmt.Errorf("examine workspace: %w", err)
	}
	runner, owner := ids{os.Geteuid(), os.Getegid()}, ids{int(st.Uid), int(st.Gid)}
	decided, err := decideIdentity(o.Identity, runner, owner, path, o.CallerOwnsFiles, func() bool {
		return unix.Faccessat(int(o.Workspace.Dir.Fd()), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil
	})
	if err != nil {
		return nil, identityPlan{}, err
	}
	dir, err := os.OpenFile(o.Dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, identityPlan{}, fmt.Errorf("open session directory: %w", err)
	}
	return &Mounts{
		Path: path, Target: o.Workspace.MountPoint(),
		scratch: map[string]string{},
		cleanup: &cleanup{list: o.Cleanup, base: o.Dir, dir: dir, workspace: o.Workspace.Dir, maps: decided.maps},
	}, decided, nil
}

// reserveNames makes the placeholders as the owner of their directory, or
// shares those of other sessions.
func (p *Mounts) reserveNames(ctx context.Context, dir *os.File, name string, list []guard, decided identityPlan) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return fmt.Errorf("examine %s: %w", name, err)
	}
	for _, g := range list {
		place := ownership.Placeholder{
			Workspace: name, WorkspaceDev: st.Dev, WorkspaceIno: st.Ino, Name: g.name,
			UID: decided.files.uid, GID: decided.files.gid,
		}
		if !place.IsReservable() {
			continue
		}
		id, err := p.cleanup.list.Reserve(ctx, dir, place)
		switch {
		case err == nil:
			p.cleanup.placeholders = append(p.cleanup.placeholders, placeholderOf{id, dir})
		case !g.reserve && errors.Is(err, fs.ErrExist): // the user's own
		default:
			return reserveError(name, err)
		}
	}
	return nil
}

func reserveError(path string, err error) error {
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		return fmt.Errorf("workspace %s: %w: its owner can't write to it: %w", path, sandbox.ErrInvalid, err)
	}
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("workspace %s: %w: it was changed while it was prepared: try again: %w", path, sandbox.ErrUnavailable, err)
	}
	return fmt.Errorf("reserve names in workspace: %w", err)
}

func (p *Mounts) prepareCopy(ctx context.Context, o Options, decided identityPlan) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("prepare workspace: %w", err)
	}
	if err := p.bindWanted(o, decided, nil); err != nil {
		return err
	}
	p.Binds = []Bind{{Target: p.Target, Dir: true}}
	var err error
	p.cleanup.layers, err = openLayers(o.Workspace.Layers, o.StateDir, decided.files.uid, (*overlayLayers).probeWhiteouts)
	return err
}

// bindWanted makes the binds: first of wanted, which begins with the workspace
// and its submounts, then of the further mounts. It stages them if the plan
// demands it and this process may mount, and binds them by path otherwise.
func (p *Mounts) bindWanted(o Options, decided identityPlan, wanted []guard) error {
	if decided.stage {
		err := p.stageAll(o, &decided, wanted)
		if err == nil {
			p.setIdentity(decided)
			return nil
		}
		if !errors.Is(err, errNoMounts) {
			return fmt.Errorf("mount workspace: %w", err)
		}
		o.Log.Info("staging mounts are not possible", zap.Error(err))
		if err := p.cleanup.discardStaging(); err != nil {
			return err
		}
		p.Binds, p.Further = nil, nil
		if decided.want.Root || decided.want.Base.IsNamespace() || decided.command != decided.files || len(decided.want.Groups) > 0 {
			if decided, err = decided.withoutIDMap(p.Path, err); err != nil {
				return err
			}
		}
		decided.stage, decided.lost = false, append(decided.lost, LostFlags)
	}
	for _, g := range wanted {
		if err := p.bindByPath(g); err != nil {
			return err
		}
	}
	p.setIdentity(decided)
	return p.bindFurther(o, decided)
}

// coverDir contains the file that covers a guard, below Options.Dir.
const coverDir = "cover"

// bindByPath binds a file of the workspace on itself by its path.
func (p *Mounts) bindByPath(g guard) error {
	b, err := p.cleanup.bindByPath(p.cleanup.workspace, g, p.Path, p.Target, coverDir)
	p.Binds = append(p.Binds, b)
	return err
}

// bindByPath binds g in root, a directory at path for target, by its path. It
// hides Caisson's own configuration, which nothing inside needs, under an empty
// file or directory in cover. A bind by path would not do: the name is guarded
// only if it existed, so a command of another session may have just made it and
// be exchanging it for a symlink, and gVisor can't tell afterwards what was
// mounted.
func (u *cleanup) bindByPath(root *os.File, g guard, at, target, cover string) (Bind, error) {
	f, err := g.open(root)
	if err != nil {
		return Bind{}, err
	}
	defer func() { _ = f.Close() }()
	if g.name != ownConfig {
		return u.newBind(f, cmp.Or(g.from, path.Join(at, g.name)), g.mountPoint(target), g.readOnly)
	}
	empty, err := u.makeCover(f, cover)
	if err != nil {
		return Bind{}, fmt.Errorf("cover %s: %w", g.name, err)
	}
	defer func() { _ = empty.Close() }()
	return u.newBind(empty, empty.Name(), g.mountPoint(target), g.readOnly)
}

// makeCover makes and opens an empty file or directory, like f, in a new
// directory of the session.
func (u *cleanup) makeCover(f *os.File, dir string) (*os.File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	place, err := u.makeDir(dir, 0o755)
	if err != nil {
		return nil, err
	}
	place = filepath.Join(place, "empty")
	if info.IsDir() {
		err = os.Mkdir(place, 0o755)
	} else {
		err = os.WriteFile(place, nil, 0o444)
	}
	if err != nil {
		return nil, err
	}
	return os.OpenFile(place, unix.O_PATH|unix.O_NOFOLLOW, 0)
}

func (p *Mounts) setIdentity(decided identityPlan) {
	p.CommandUID, p.CommandGID = decided.command.uid, decided.command.gid
	p.OwnerUID, p.OwnerGID = decided.files.uid, decided.files.gid
	p.IDMapped = decided.idmap
	p.Lost = append(p.Lost, decided.lost...)
}

// stageAll stages every bind. If ids can't be mapped, it changes the plan and
// begins again, once.
func (p *Mounts) stageAll(o Options, decided *identityPlan, wanted []guard) (err error) {
	s := &stager{cleanup: p.cleanup, attachLayers: o.attachLayers}
	if decided.idmap {
		s.userns, err = o.UserNamespaces.openFor(o.Holder, idMaps{decided.files, o.Identity})
		if err != nil {
			err = fmt.Errorf("%w: %w", errNoIDMap, err)
		} else {
			defer func() { _ = s.userns.Close() }()
		}
	}
	if err == nil && o.Identity.Root && !o.Identity.Base.IsNamespace() && len(p.cleanup.scratch) > 0 {
		if s.scratch, err = o.UserNamespaces.openFor(o.Holder, idMaps{ids{FirstID, FirstID}, o.Identity}); err != nil {
			return err
		}
		defer func() { _ = s.scratch.Close() }()
	}
	if err == nil {
		if err = s.makeMountsDir(mountsDir, len(wanted)+p.cleanup.countOverlay()+p.cleanup.countFurther()); err != nil {
			return err
		}
		err = p.stageWanted(s, wanted)
	}
	if err == nil {
		err = p.stageFurther(s, *decided)
	}
	if !errors.Is(err, errNoIDMap) {
		return err
	}
	if err := p.cleanup.discardStaging(); err != nil {
		return err
	}
	p.Binds, p.Further = nil, nil
	if *decided, err = decided.withoutIDMap(p.Path, err); err != nil {
		return err
	}
	return p.stageAll(o, decided, wanted)
}

func (p *Mounts) stageWanted(s *stager, wanted []guard) error {
	if p.cleanup.layers != nil {
		return p.stageOverlay(s, wanted[1:])
	}
	for _, g := range wanted {
		if err := p.stageBind(s, p.cleanup.workspace, g, s.userns); err != nil {
			return err
		}
	}
	return nil
}

// stageBind stages g in root, id-mapped by userns, and adds it to the binds.
func (p *Mounts) stageBind(s *stager, root *os.File, g guard, userns *os.File) error {
	f, err := g.open(root)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	source, err := s.stageClone(f, g.readOnly, userns)
	if err != nil {
		return err
	}
	return p.addBind(f, g, source)
}

func (p *Mounts) addBind(f *os.File, g guard, source string) error {
	b, err := p.cleanup.newBind(f, source, g.mountPoint(p.Target), g.readOnly)
	p.Binds = append(p.Binds, b)
	return err
}

// newBind returns the bind of f, which has the path source.
func (u *cleanup) newBind(f *os.File, source, target string, readOnly bool) (Bind, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Bind{}, fmt.Errorf("examine what is mounted at %s: %w", target, err)
	}
	return Bind{
		Source: source, Target: target, ReadOnly: readOnly, Maps: u.maps, Private: strings.HasPrefix(source, u.base+"/"),
		Dir: st.Mode&unix.S_IFMT == unix.S_IFDIR, Device: st.Dev, Inode: st.Ino,
	}, nil
}
