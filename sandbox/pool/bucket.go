package pool

import (
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// bucket holds the sandboxes for one spec. It is guarded by the mutex of the
// pool.
type bucket struct {
	spec     sandbox.Spec    // without session and directory; with its own descriptor
	lastUsed time.Time       // the time of the last Create or Prepare
	ready    []*readySandbox // oldest first
	starting int
	users    int // calls that use the bucket
}

// isPoolable reports whether a sandbox for a spec can be started before its
// session is known.
func isPoolable(spec sandbox.Spec) bool {
	if spec.Service != nil {
		return false // what it does in time is the session's own
	}
	if spec.Egress != nil && len(spec.Egress.Roots)+len(spec.Egress.Files) > 0 {
		return false // so is their certificate authority
	}
	if spec.Workspace.Dir == nil || spec.Workspace.Mode.KeepsChanges() || spec.Workspace.Layers != "" || spec.Workspace.Unguarded {
		return false
	}
	if slices.ContainsFunc(spec.Mounts, func(m sandbox.Mount) bool { return m.Dir != nil }) {
		return false // the session's own
	}
	switch spec.Image.Scheme {
	case images.SchemeHost, images.SchemeRootFS, images.SchemeName:
		return true
	}
	return false
}

// stripSession returns the spec without the fields that differ between
// sessions.
func stripSession(spec sandbox.Spec) sandbox.Spec {
	spec.Session = ""
	spec.Dir = ""
	spec.Notify = nil
	return spec
}

// specKey returns the key of a spec's bucket: everything that a sandbox depends
// on, with the workspace's device and inode instead of its descriptor. A field of
// Spec that is a pointer must be replaced here by its value, as Egress is: %#v
// prints its address, and no two specs would be equal.
func specKey(spec sandbox.Spec) (string, error) {
	spec = stripSession(spec)
	dir, err := dirIdentity(spec.Workspace.Dir)
	if err != nil {
		return "", err
	}
	spec.Workspace.Dir = nil
	var egress sandbox.EgressPlan
	if spec.Egress != nil {
		egress = *spec.Egress
		egress.Port = egress.ProxyPort()
	}
	spec.Egress = nil
	return fmt.Sprintf("%s %#v %#v", dir, egress, spec), nil
}

// acquireBucket returns the bucket of a spec and marks it as used now. It
// creates a missing one. The caller must call releaseBucket.
func (p *Pool) acquireBucket(spec sandbox.Spec) (*bucket, error) {
	name, err := specKey(spec)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	b, ok := p.buckets[name]
	if !ok {
		b = &bucket{spec: stripSession(spec)}
		b.spec.Workspace.Dir, err = duplicateDir(spec.Workspace.Dir)
		if err != nil {
			return nil, err
		}
		p.forgetOldestLocked()
		p.buckets[name] = b
	}
	b.lastUsed = time.Now()
	b.users++
	return b, nil
}

// releaseBucket ends the use of a bucket by a call.
func (p *Pool) releaseBucket(b *bucket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b.users--
}

// isIdle reports whether the bucket's descriptor is unused.
func (b *bucket) isIdle() bool { return len(b.ready)+b.starting+b.users == 0 }

// spareBuckets is the number of buckets that are kept beyond Options.Size. Each
// one holds a descriptor.
const spareBuckets = 64

// forgetOldestLocked makes room for one more bucket by removing the least
// recently used idle one.
func (p *Pool) forgetOldestLocked() {
	if len(p.buckets) < p.opts.Size+spareBuckets {
		return
	}
	oldest := ""
	for name, b := range p.buckets {
		if b.isIdle() && (oldest == "" || b.lastUsed.Before(p.buckets[oldest].lastUsed)) {
			oldest = name
		}
	}
	if b, ok := p.buckets[oldest]; ok {
		b.closeDir()
		delete(p.buckets, oldest)
	}
}

// closeDir closes the bucket's descriptor of the workspace.
func (b *bucket) closeDir() { _ = b.spec.Workspace.Dir.Close() } // it was only held open

// duplicateDir returns a second descriptor of the workspace, without using its
// path.
func duplicateDir(f *os.File) (*os.File, error) {
	d, err := duplicateFile(f)
	if err != nil {
		return nil, fmt.Errorf("hold workspace: %w", err)
	}
	return d, nil
}

// dirIdentity returns a string that identifies the directory of a descriptor.
func dirIdentity(f *os.File) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", fmt.Errorf("examine workspace: %w", err)
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}

// duplicateFile returns a second descriptor of the file.
func duplicateFile(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
