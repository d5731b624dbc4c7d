package workmount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// LostOthers is in Mounts.Lost if the workspace's overlay is mounted in a
// single-user user namespace.
const LostOthers = "files and directories of other users and groups in the workspace can't be changed, because the overlay knows one user and group only"

// MountNamespace starts a runtime in a user and mount namespace in which
// overlays are mounted. The guest's binary mounts them there and then becomes
// the runtime (see its package enter), so no extra process stays.
type MountNamespace struct {
	mounts   *Mounts
	holder   string
	overlays []namespaceOverlay

	socket      int      // our end, closed by closeSockets
	theirSocket *os.File // the other

	mu     sync.Mutex
	closed bool
}

// namespaceOverlay is an overlay of a directory, with its paths and
// descriptors.
type namespaceOverlay struct {
	at, path string
	dir      *os.File
	layers   *overlayLayers
	further  int // index in Mounts.Further, or one of the constants below
}

// Overlays that are not in Mounts.Further.
const (
	workspaceOverlay = -1 - iota
	rootOverlay
)

// planNamespace leaves the workspace's overlay to the runtime's namespace.
func (p *Mounts) planNamespace(o Options, decided identityPlan, list []guard) error {
	at, err := p.planOverlay(o.Holder, namespaceOverlay{path: p.Path, dir: p.cleanup.workspace, layers: p.cleanup.layers, further: workspaceOverlay})
	if err != nil {
		return err
	}
	p.Binds = []Bind{{Source: at, Target: p.Target, Dir: true, Private: true}}
	if err := p.bindUnstaged(o, decided, list); err != nil {
		return err
	}
	p.Lost = append(p.Lost, LostOthers)
	return nil
}

// planLayered is planNamespace for a further mount.
func (p *Mounts) planLayered(holder string, m furtherMount) error {
	at, err := p.planOverlay(holder, namespaceOverlay{path: m.source, dir: m.Dir, layers: m.layers, further: len(p.Further)})
	if err != nil {
		return err
	}
	p.Further = append(p.Further, Bind{Source: at, Target: m.Target, Dir: true, Private: true})
	p.Lost = append(p.Lost, fmt.Sprintf("mount at %s: files and directories of other users and groups can't be changed, because the overlay knows one user and group only", m.Target))
	return nil
}

// PlanRoot is [StageRoot] for a process that may mount only in its own user
// namespace: holder mounts the root in p's namespace. If another user owns the
// image's files, commands can't change them, which p.Lost says.
func (p *Mounts) PlanRoot(o RootOptions, holder string) (_ *Root, err error) {
	image, err := os.OpenFile(o.Image, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	c, err := o.newCleanup()
	if err != nil {
		return nil, errors.Join(err, image.Close())
	}
	r := &Root{cleanup: c, opened: []*os.File{image}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &st); err != nil {
		return nil, fmt.Errorf("examine image: %w", err)
	}
	o.UID, o.GID = os.Geteuid(), os.Getegid()
	if int(st.Uid) != o.UID {
		p.Lost = append(p.Lost, "files of other users in the image can't be changed, because the overlay knows one user and group only")
	}
	layers, err := r.makeLayers(o)
	if err != nil {
		return nil, err
	}
	r.opened = append(r.opened, layers)
	v := namespaceOverlay{path: o.Image, dir: image, layers: &overlayLayers{path: filepath.Join(o.Dir, rootLayersDir), dir: layers}, further: rootOverlay}
	r.Path, err = p.planOverlay(holder, v)
	return r, err
}

// planOverlay adds an overlay to the namespace, which it makes first if needed,
// and returns the mount point. Outside the namespace, that stays an empty
// directory.
func (p *Mounts) planOverlay(holder string, v namespaceOverlay) (string, error) {
	if p.Namespace == nil {
		s := &stager{cleanup: p.cleanup}
		if err := s.makeMountsDir(mountsDir, 0); err != nil { // a plain directory: nothing is mounted on it here
			return "", err
		}
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return "", fmt.Errorf("make socket: %w", err)
		}
		p.Namespace = &MountNamespace{mounts: p, holder: holder, socket: pair[0], theirSocket: os.NewFile(uintptr(pair[1]), "entrance")}
		p.cleanup.namespace = p.Namespace
	}
	v.at = filepath.Join(p.cleanup.base, mountsDir, fmt.Sprintf("overlay-%d", len(p.Namespace.overlays)+1))
	if err := os.Mkdir(v.at, 0o700); err != nil {
		return "", fmt.Errorf("make mount point: %w", err)
	}
	p.Namespace.overlays = append(p.Namespace.overlays, v)
	return v.at, nil
}

// enterWord selects the guest's package enter, enterFrozen begins a frozen layer,
// and enterEnd ends the overlays.
const (
	enterWord   = "overlay"
	enterFrozen = "+"
	enterEnd    = "--"
)

// overlayCapabilities are needed to mount the overlay in its namespace, and by
// overlayfs to copy files up (linux/capability.h).
var overlayCapabilities = []uintptr{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SYS_ADMIN}

// WrapCommand changes a command that has not started, so that it runs in the
// namespace. It must have no ExtraFiles. Call WaitMounted after starting it.
func (e *MountNamespace) WrapCommand(cmd *exec.Cmd) {
	args, files := []string{e.holder, enterWord}, []*os.File{e.theirSocket}
	for _, v := range e.overlays {
		args = append(args, v.at, v.path, v.layers.path)
		files = append(files, v.dir, v.layers.dir)
		for _, f := range v.layers.frozen {
			args, files = append(args, enterFrozen+f.Name()), append(files, f)
		}
	}
	cmd.Args = append(append(args, enterEnd, cmd.Path), cmd.Args[1:]...)
	cmd.Path, cmd.ExtraFiles = e.holder, files
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	one := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
	}
	a := cmd.SysProcAttr
	a.Cloneflags |= syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS
	a.UidMappings, a.GidMappings = one(os.Geteuid()), one(os.Getegid())
	a.AmbientCaps = overlayCapabilities
}

// openTime bounds the mount, which takes some 10 ms.
const openTime = 30 * time.Second

// WaitMounted waits until the overlays are mounted, and keeps the workspace's
// root for View. It returns ErrUnsupported if the kernel or this user can't
// mount them. Call it once the wrapped command has started. Cancelling ctx ends
// it.
func (e *MountNamespace) WaitMounted(ctx context.Context) error {
	_ = e.theirSocket.Close() // or the command's end would not end the wait
	ctx, cancel := context.WithTimeoutCause(ctx, openTime, fmt.Errorf("%w: the overlay was not mounted within %s", sandbox.ErrUnavailable, openTime))
	defer cancel()
	stop := context.AfterFunc(ctx, e.hangUp)
	roots, err := e.receiveRoots()
	if !stop() && err != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	for i, v := range e.overlays {
		err = errors.Join(err, takeRoot(e.mounts, v, roots[i]))
	}
	return err
}

func takeRoot(p *Mounts, v namespaceOverlay, root *os.File) error {
	b := &p.Binds[0]
	switch v.further {
	case workspaceOverlay:
		p.cleanup.mu.Lock()
		p.cleanup.closeView()
		p.cleanup.view = root
		p.cleanup.mu.Unlock()
	case rootOverlay:
		return root.Close()
	default:
		b = &p.Further[v.further]
		defer func() { _ = root.Close() }()
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return fmt.Errorf("examine overlay: %w", err)
	}
	b.Device, b.Inode = st.Dev, st.Ino
	return nil
}

// hangUp ends the wait for the command.
func (e *MountNamespace) hangUp() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		_ = unix.Shutdown(e.socket, unix.SHUT_RDWR) // it may be shut down already
	}
}

// receiveRoots receives one message: a descriptor for each overlay, or the text
// of an error.
func (e *MountNamespace) receiveRoots() ([]*os.File, error) {
	text, control := make([]byte, 4<<10), make([]byte, unix.CmsgSpace(4*len(e.overlays)))
	n, c, _, _, err := unix.Recvmsg(e.socket, text, control, unix.MSG_CMSG_CLOEXEC)
	if errors.Is(err, unix.EINTR) {
		return e.receiveRoots()
	}
	if err != nil {
		return nil, fmt.Errorf("wait for the overlay: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:c])
	if err == nil && len(messages) == 1 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == len(e.overlays) {
			var roots []*os.File
			for i, fd := range fds {
				roots = append(roots, os.NewFile(uintptr(fd), e.overlays[i].path))
			}
			return roots, nil
		}
	}
	if n == 0 {
		return nil, fmt.Errorf("mount overlay: %w: the guest's binary could not be started in a user namespace", sandbox.ErrUnsupported)
	}
	return nil, fmt.Errorf("workspace %s: %w: an overlay can't be mounted in a user namespace here (%s): use bind mode, run as root, or use the docker backend",
		e.mounts.Path, sandbox.ErrUnsupported, text[:n])
}

func (e *MountNamespace) closeSockets() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.closed = true
		unix.Close(e.socket)
		_ = e.theirSocket.Close()
	}
}
