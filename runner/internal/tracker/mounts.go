package tracker

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// mountsTracker adds the user's mounted directories to a workspace that the sandbox changes in
// place, with the same checks. Reports show their paths in the sandbox.
type mountsTracker struct {
	Tracker
	mounts []*bindTracker
}

// WithMounts adds writable directories of the user, which the sandbox changes in place, to what
// t tracks. It ignores the options Change and Images of a directory: this process renames the
// repositories there, and makes no diffs.
func WithMounts(t Tracker, mounts []Options) Tracker {
	if len(mounts) == 0 {
		return t
	}
	m := &mountsTracker{Tracker: t}
	for _, o := range mounts {
		o.Change, o.Images = changeFromHost(o.Workspace), nil
		m.mounts = append(m.mounts, newBind(o, func() error { return nil }))
	}
	return m
}

// changeFromHost returns a function that changes a directory with its owner's rights, so that it
// does nothing that a command could not have done.
func changeFromHost(dir *os.File) func(context.Context, workspace.Op) (workspace.Change, error) {
	return func(ctx context.Context, op workspace.Op) (change workspace.Change, err error) {
		err = actAsOwner(dir, func() error {
			change, err = workspace.NewWriter(dir, workspace.WriterOptions{}).Apply(ctx, op)
			return err
		})
		return change, err
	}
}

// PrepareSpec also finds what the directories' mounts must protect.
func (m *mountsTracker) PrepareSpec(ctx context.Context, spec *sandbox.Spec) {
	m.Tracker.PrepareSpec(ctx, spec)
	spec.Mounts = slices.Clone(spec.Mounts)
	for _, b := range m.mounts {
		i := slices.IndexFunc(spec.Mounts, func(mount sandbox.Mount) bool { return mount.Target == b.Target && mount.Guarded })
		if i >= 0 {
			spec.Mounts[i].Repositories, spec.Mounts[i].Privileged = b.listProtected(ctx, spec)
		}
	}
}

func (m *mountsTracker) StartRecording(ctx context.Context) {
	m.Tracker.StartRecording(ctx)
	for _, b := range m.mounts {
		b.StartRecording(ctx)
	}
}

func (m *mountsTracker) WaitRecorded(ctx context.Context) error {
	for _, b := range m.mounts {
		if err := b.WaitRecorded(ctx); err != nil {
			return err
		}
	}
	return m.Tracker.WaitRecorded(ctx)
}

func (m *mountsTracker) CheckAfterCommand(ctx context.Context) {
	m.Tracker.CheckAfterCommand(ctx)
	for _, b := range m.mounts {
		b.CheckAfterCommand(ctx)
	}
}

func (m *mountsTracker) CheckAtEnd() {
	m.Tracker.CheckAtEnd()
	for _, b := range m.mounts {
		b.CheckAtEnd()
	}
}

func (m *mountsTracker) FindDifferences(ctx context.Context) (changes.Differences, error) {
	d, err := m.Tracker.FindDifferences(ctx)
	for _, b := range m.mounts {
		if err != nil {
			return d, err
		}
		var of changes.Differences
		of, err = b.FindDifferences(ctx)
		d = d.WithMount(b.Target, of)
	}
	return d, err
}

func (m *mountsTracker) AddChanges(end *record.SessionEnded, apply bool) (patch string, refused bool) {
	patch, refused = m.Tracker.AddChanges(end, apply)
	for _, b := range m.mounts {
		var of record.SessionEnded
		b.AddChanges(&of, false)
		b.addTo(end, of)
	}
	// Failed renames come first, as in the list of one directory.
	slices.SortStableFunc(end.Quarantined, func(a, b record.Quarantined) int {
		switch {
		case (a.To == "") == (b.To == ""):
			return 0
		case a.To == "":
			return -1
		}
		return 1
	})
	return patch, refused
}

// addTo adds what AddChanges said of a mounted directory to the record of the whole session.
func (b *bindTracker) addTo(end *record.SessionEnded, of record.SessionEnded) {
	r := &sessionChanges{SessionEnded: end}
	r.setDifferences(differencesOf(*end).WithMount(b.Target, differencesOf(of)))
	for _, q := range of.Quarantined {
		q.Path = changes.PathInMount(b.Target, q.Path)
		if q.To != "" {
			q.To = changes.PathInMount(b.Target, q.To)
		}
		end.Quarantined = append(end.Quarantined, q)
	}
	for _, c := range of.Cleared {
		c.Path = changes.PathInMount(b.Target, c.Path)
		end.Cleared = append(end.Cleared, c)
	}
}

func differencesOf(e record.SessionEnded) changes.Differences {
	return changes.Differences{
		Changed: e.Changed, ChangedOmitted: e.ChangedOmitted, HostExecuted: e.HostExecuted, HostExecutedOmitted: e.HostExecutedOmitted,
		Incomplete: e.Incomplete,
	}
}

func (m *mountsTracker) DiscardState() {
	m.Tracker.DiscardState()
	for _, b := range m.mounts {
		b.DiscardState()
	}
}

func (m *mountsTracker) ReleaseState() {
	m.Tracker.ReleaseState()
	for _, b := range m.mounts {
		b.ReleaseState()
	}
}

// actAsOwner calls do with the file system identity of a directory's owner, on a separate
// thread. Only root needs that, and can do it; other users act as themselves.
func actAsOwner(dir *os.File, do func() error) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return fmt.Errorf("read owner: %w", err)
	}
	uid, gid := int(st.Uid), int(st.Gid)
	if os.Geteuid() != 0 || uid == 0 {
		return do()
	}
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and its identity with it.
		runtime.LockOSThread()
		_, err := unix.SetfsgidRetGid(gid)
		if err == nil {
			_, err = unix.SetfsuidRetUid(uid)
		}
		if now, again := unix.SetfsuidRetUid(-1); err != nil || again != nil || now != uid {
			result <- fmt.Errorf("change file system identity to uid %d: %w", uid, unix.EPERM)
			return
		}
		result <- do()
	}()
	return <-result
}
