package oci

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
	"github.com/caisson-run/caisson/sandbox/programs"
)

type driver struct{ backend *Backend }

var _ lifecycle.Driver = driver{}

type container struct {
	backend *Backend
	prep    *lifecycle.Preparation
	id      string
	hosted  bool // its isolation is sandbox.IsolationProcess

	plan plan
	lost []string // limits that can't be set
	// job is what shares its limits with the container; nil if that has its own
	// cgroup or namespaces, or the job's cgroups can't be read.
	job          *job
	before       jobCounters
	bundle       bundle
	log          *runtimeLog
	stdio        *stdio
	theirs       streams
	launch       *launch
	private      workmount.PrivateMounts
	process      *hostProcess
	groups       []int // of a hosted sandbox's processes
	cgroup       cgroup
	root         *workmount.Root // of an ephemeral root
	disconnected bool            // disconnect was called
	ended        bool            // set by disconnect
}

var _ lifecycle.Container = (*container)(nil)

func (d driver) NewContainer(_ context.Context, p *lifecycle.Preparation) (lifecycle.Container, error) {
	b := d.backend
	isolation, _, err := b.chooseIsolation()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(b.options.RuntimePath); err != nil {
		return nil, fmt.Errorf("runtime %s: %w: install it, or name its path in the configuration: %w", b.options.RuntimePath, sandbox.ErrNotFound, err)
	}
	if err := b.checkRoot(p.Spec); err != nil {
		return nil, err
	}
	if p.Spec.User == sandbox.UserImage && b.rootless && b.options.Kind == Runc {
		return nil, &sandbox.IncapableError{
			Request: "user image", Reason: "a container that runc makes for an ordinary user has one user, which is root inside",
			Hint: "use the gvisor backend, or run as root",
		}
	}
	c := &container{backend: b, prep: p, id: p.Name, hosted: isolation == sandbox.IsolationProcess}
	if c.hosted && os.Geteuid() == 0 && c.isRoot() && p.Spec.Image.Scheme == images.SchemeHost {
		return nil, &sandbox.IncapableError{
			Request: "user root with image host", Reason: "without namespaces, root in the sandbox could read what only root may read here",
			Hint: "use another image or user, or run Caisson as an ordinary user",
		}
	}
	c.plan.cgroup, c.job, c.lost = b.planLimits(p.Spec.Session, isolation)
	if c.job != nil {
		c.before = c.job.readCounters()
		p.Job, p.OOMKills = c.job.forAdmission(p.Spec), func() int64 { return c.job.readCounters().kills }
	}
	return c, nil
}

// checkRoot refuses an ephemeral root that this backend can't provide.
func (b *Backend) checkRoot(spec sandbox.Spec) error {
	switch {
	case spec.Root != sandbox.RootEphemeral:
		return nil
	case b.traits.ownKernel && strings.ContainsAny(spec.Dir, ":,"):
		return fmt.Errorf("root: %w: gVisor keeps no layer below %s: use a state directory (XDG_STATE_HOME) without colon and comma", sandbox.ErrUnsupported, spec.Dir)
	}
	return nil
}

func (c *container) ID() string { return c.id }

func (c *container) FetchImage(context.Context) (bool, error) { return false, nil }

func (c *container) Plan(context.Context) ([]ownership.Entry, error) {
	if err := c.fitMemory(); err != nil {
		return nil, err
	}
	list := []ownership.Entry{{Kind: ownership.KindContainer, Name: c.id}}
	for _, dir := range c.plan.cgroup.dirs {
		list = append(list, ownership.Entry{Kind: ownership.KindCgroup, Name: strings.TrimPrefix(dir, "/")})
	}
	return list, nil
}

// Begin starts the runtime before its bundle is complete, to overlap its start
// with the preparation of the mounts. It does so only if the runtime is known
// to wait for the bundle; see [launch].
func (c *container) Begin(ctx context.Context) (err error) {
	resources := c.prep.Spec.Resources
	if err := c.plan.cgroup.makeCgroups(resources, harden.HostPIDs(resources.PIDs, c.backend.traits.ownKernel)); err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	go expectMigration(ctx, c.plan.cgroup)
	c.bundle = bundle{dir: c.prep.Files.Dir()}
	if c.log, err = c.bundle.makeLog(); err != nil {
		return err
	}
	if c.stdio, c.theirs, err = openStdio(); err != nil {
		return err
	}
	// An ordinary user's overlay, and the image of root commands, decide how
	// the runtime must be started, so those wait for Create.
	layered := slices.ContainsFunc(c.prep.Spec.Mounts, func(m sandbox.Mount) bool { return m.Layers != "" })
	entered := c.backend.rootless && !c.hosted && (layered || c.prep.Spec.Root == sandbox.RootEphemeral || c.prep.Spec.Workspace.Mode == sandbox.ModeOverlay)
	if entered || c.mapsImage() || !c.log.held || !c.backend.runtime.waitsForLog(c.backend.traits) {
		return nil
	}
	return c.startRuntime(ctx)
}

// startRuntime starts the runtime. Our copies of the container's ends are
// closed then, because the pipes would otherwise not end with the guest.
func (c *container) startRuntime(ctx context.Context) (err error) {
	var entrance *workmount.MountNamespace
	if c.prep.Mounts != nil {
		entrance = c.prep.Mounts.Namespace
	}
	f := runtimeFlags{cgroups: c.plan.cgroup.path != "", hosted: c.hosted}
	if c.job != nil {
		r := c.prep.Spec.Resources
		f.memory, f.processors = r.MemoryBytes, kernelProcessors(r.MilliCPUs)
	}
	if c.prep.Spec.Root == sandbox.RootEphemeral {
		f.layer = c.bundle.dir
	}
	if c.hosted {
		adoptOrphans()
	}
	start := c.private.Start // for root, whose plan never has made set
	if c.plan.cgroup.made {
		start = c.plan.cgroup.startInside
	}
	c.launch, err = c.backend.runtime.startRun(ctx, c.bundle, c.id, f, c.theirs, entrance, start)
	return errors.Join(err, c.theirs.close())
}

// Identity returns [Backend.identity] for the lifecycle, with what commands and
// guest can do to each other if they share an ID.
func (c *container) Identity(m *workmount.Mounts) lifecycle.Identity {
	id := c.identity(m)
	if id.root {
		base := workmount.Base{}
		if id.user != nil && !c.backend.rootless {
			base = workmount.OwnBase
		}
		out := lifecycle.RootIdentity(c.prep.Spec, base)
		out.SingleUID, out.Workspace.RuntimeMaps = id.single, c.hosted
		return out
	}
	out := lifecycle.Identity{CommandUID: id.commandUID, CommandGID: id.commandGID, SingleUID: id.single, ForeignFiles: !c.backend.rootless && !m.IDMapped}
	out.Workspace = c.prep.ImageIdentity()
	out.Workspace.RuntimeMaps = c.hosted
	switch {
	case id.single: // attested as lost
		out.Accepted = []string{"kill-guest", "list-guest-descriptors", "setuid-root"}
	case id.guestUID != 0:
		// gVisor makes the directory while the guest still has the commands'
		// uid, so it shows how many descriptors there are. Each one is refused.
		out.Accepted = []string{"list-guest-descriptors"}
	}
	if c.backend.rootless && c.prep.Spec.Root == sandbox.RootEphemeral { // the image's files are the user's
		out.Accepted = append(out.Accepted, "write-root")
	}
	return out
}

// identity returns the users and groups in the container, from what the
// workspace needs, the user of this process, and the image's user if commands
// run as it.
func (c *container) identity(w *workmount.Mounts) identity {
	b, root, image := c.backend, c.isRoot(), c.prep.ImageIdentity()
	switch {
	case c.hosted && root:
		return identity{root: true}
	case c.hosted: // the sandbox's own kernel has all IDs, and its file server maps them
		return identity{commandUID: cmp.Or(image.UID, sandbox.CommandUID), commandGID: cmp.Or(image.GID, sandbox.CommandGID)}
	case root && b.rootless: // one ID outside, which is root inside
		return identity{root: true, single: b.options.Kind == Runc, user: &idMapping{hostUID: os.Geteuid(), hostGID: os.Getegid(), size: 1}}
	case root && b.options.Kind == GVisor: // root of the sandbox's own kernel
		return identity{root: true}
	case root:
		return identity{root: true, user: &idMapping{hostUID: workmount.FirstID, hostGID: workmount.FirstID, size: workmount.IDCount}}
	case !b.rootless:
		return identity{commandUID: w.CommandUID, commandGID: w.CommandGID}
	case b.options.Kind == GVisor:
		// The sandbox's own kernel has all IDs, but only one is the user
		// outside. The guest starts as that one and becomes 0 by its
		// capabilities.
		uid, gid := cmp.Or(image.UID, sandbox.CommandUID), cmp.Or(image.GID, sandbox.CommandGID)
		return identity{
			guestUID: uid, guestGID: gid, commandUID: uid, commandGID: gid,
			user: &idMapping{uid: uid, gid: gid, hostUID: os.Geteuid(), hostGID: os.Getegid(), size: 1},
		}
	default:
		return identity{single: true, user: &idMapping{hostUID: os.Geteuid(), hostGID: os.Getegid(), size: 1}}
	}
}

// Create completes the bundle, and starts the runtime unless Begin did.
func (c *container) Create(ctx context.Context) (lifecycle.Connection, error) {
	if err := c.writeBundle(); err != nil {
		return nil, err
	}
	if err := c.log.releaseLease(); err != nil {
		return nil, err
	}
	if c.launch != nil {
		return c.stdio, nil
	}
	return c.stdio, c.startRuntime(ctx)
}

func (c *container) writeBundle() (err error) {
	b, p := c.backend, c.prep
	if err := b.checkImageDir(p.Image.Dir); err != nil {
		return fmt.Errorf("image %s: %w", p.Spec.Image, err)
	}
	c.plan.traits, c.plan.resources, c.plan.ceiling = b.traits, p.Spec.Resources, b.hardLimit
	c.plan.oomScore = oomScore(readText("/proc/self", "oom_score_adj"))
	c.plan.identity, c.plan.image, c.plan.files, c.plan.workspace = c.identity(p.Mounts), p.Image, p.FileBinds(), p.Mounts.Binds
	c.plan.further, c.plan.lowPorts = p.Mounts.Further, p.BindsLowPorts()
	c.plan.hosted = c.hosted
	if c.hosted && b.rootless {
		c.plan.mapOwner(os.Geteuid(), os.Getegid(), p.Spec.Root == sandbox.RootEphemeral)
	}
	c.plan.tmpfs, c.plan.furtherTmpfs = p.Tmpfs()
	if c.plan.volumes, err = p.VolumeMounts(p.Config.Volumes); err != nil {
		return err
	}
	if err := c.setRoot(); err != nil {
		return err
	}
	if !b.traits.ownKernel {
		if c.plan.seccomp, err = p.Seccomp(runtime.GOARCH); err != nil {
			return fmt.Errorf("%w: %w", sandbox.ErrUnsupported, err)
		}
	}
	if err := c.fitPIDs(); err != nil {
		return err
	}
	return c.bundle.writeConfig(c.plan.spec())
}

// checkImageDir returns an error if programs of an image in dir can't be
// executed; dir is empty for host. On a noexec file system, gVisor kills what
// is executed by SIGSEGV, and an ordinary user can't mount the image without
// the flag. As root, runc mounts it anew without it.
func (b *Backend) checkImageDir(dir string) error {
	if dir == "" || !b.traits.ownKernel && !b.rootless {
		return nil
	}
	if err := programs.CheckExec(dir); err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	return nil
}

// Start waits for the runtime, then opens the container's process and finds its
// cgroup.
func (c *container) Start(ctx context.Context) error {
	if err := c.launch.waitRunning(ctx, c.log); err != nil {
		return err
	}
	if c.root != nil { // the container now has its own mount
		if err := c.root.RemoveStaging(); err != nil {
			return err
		}
	}
	pid, err := c.bundle.readPID()
	if err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	if c.process, err = openProcess(pid); err != nil {
		return fmt.Errorf("container died at once: %w: %w", sandbox.ErrUnavailable, err)
	}
	if c.hosted {
		c.groups = c.backend.runtime.findGroups(c.id, pid)
	}
	if c.plan.cgroup.isLimited() {
		if c.cgroup, err = cgroupOf(pid, c.prep.Spec.Session); err != nil {
			return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
		}
	}
	return nil
}

// ExplainFailure adds the cause if it is known: a limit of the job, a runsc
// without our patch, or a process that may not make namespaces or mounts.
func (c *container) ExplainFailure(_ context.Context, err error) error {
	if c.launch != nil && c.launch.done {
		c.keepLog(err)
	}
	if reached := c.exceededJob(); reached != nil { // not wrapped: it is no limit of the run
		return fmt.Errorf("%w: %s", err, reached.Error())
	}
	if c.hosted {
		if c.stdio != nil && strings.Contains(c.stdio.Stderr(), "-host-namespaces") {
			err = fmt.Errorf("%s can't run without namespaces: use the runsc that is built with Caisson (make build): %w", c.backend.options.RuntimePath, err)
		}
		return err
	}
	return explainFailure(err)
}

func (c *container) keepLog(err error) {
	c.stdio.stderr.waitEnd(settleTime)
	if log, _ := c.stdio.stderr.split(); len(log) > 0 {
		c.prep.Log.Warn("gVisor's own log", zap.Error(err), zap.ByteString("log", log))
	}
}

// settleTime bounds the wait for a dying container, so that the kernel's
// counters are final. A guest that only broke the protocol lives on and is
// killed then.
const settleTime = 500 * time.Millisecond

// ExplainLoss adds the limit that ended the sandbox, if the kernel counted one,
// and kills what still runs.
func (c *container) ExplainLoss(_ context.Context, err error) error {
	c.process.waitFor(settleTime)
	// On the host's kernel a limit kills a command, not the sandbox.
	if c.plan.traits.ownKernel {
		if reached := cmp.Or(c.exceededJob(), c.cgroup.findExceeded()); reached != nil {
			err = fmt.Errorf("%w: %w", err, reached)
		}
	}
	c.process.sendKill()
	c.keepLog(err)
	return err
}

// Remove kills what is left and removes the runtime's state and the cgroups.
// Each is removed only when the previous one is gone.
func (c *container) Remove(ctx context.Context) error {
	c.disconnect()
	forget := c.backend.runtime.deleteContainer
	if c.ended && c.plan.cgroup.path != "" && c.backend.runtime.keepsFilesOnly() {
		forget = c.backend.runtime.removeFiles
	}
	if _, err := forget(ctx, c.id); err != nil {
		return err
	}
	reapGroups(c.groups)
	var errs []error
	for _, dir := range c.plan.cgroup.dirs {
		_, err := removeCgroup(dir, c.prep.Spec.Session)
		errs = append(errs, err)
	}
	if c.root != nil {
		errs = append(errs, c.root.Close())
	}
	return errors.Join(errs...)
}

func (c *container) disconnect() {
	if c.disconnected {
		return
	}
	c.disconnected = true
	c.private.Close()
	if c.stdio != nil {
		_ = c.stdio.Close()  // the lifecycle may have closed it
		_ = c.theirs.close() // startRuntime may have closed them
	}
	if c.launch != nil {
		c.launch.waitUnused(c.log.held)
	}
	if c.process != nil {
		if c.ended = c.process.waitFor(exitTime); !c.ended {
			c.process.sendKill()
			thawCgroups(c.plan.cgroup.dirs)
			c.ended = c.process.waitFor(destroyTime / 2)
		}
	}
	if c.stdio != nil {
		c.stdio.stderr.close()
	}
	if c.log != nil {
		c.log.close()
	}
	if c.process != nil {
		c.process.close()
	}
}

// exitTime bounds the guest's own exit, in which it kills everything. It takes
// milliseconds.
const exitTime = 2 * time.Second

// bundle is the directory of a container's bundle, the same as the session
// files'.
type bundle struct{ dir string }

func (b bundle) pidFile() string { return filepath.Join(b.dir, "pid") }
func (b bundle) logPath() string { return filepath.Join(b.dir, "log.json") }

func (b bundle) writeConfig(s *specs.Spec) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "config.json"), data, 0o600); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

// readPID reads the PID, on the host, that the runtime wrote: the container's
// first process, or with gVisor the sandbox's.
func (b bundle) readPID() (int, error) {
	data, err := os.ReadFile(b.pidFile())
	if err != nil {
		return 0, fmt.Errorf("read container's pid: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("read container's pid: %q is none", data)
	}
	return pid, nil
}
