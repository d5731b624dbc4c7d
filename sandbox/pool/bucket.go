package pool

import (
	"fmt"
	"os"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// bucket is all sandboxes for one spec. It is guarded by the pool.
type bucket struct {
	spec     sandbox.Spec    // without session and folder; with a descriptor of its own
	lastUsed time.Time       // when it was asked for last
	ready    []*readySandbox // the oldest first
	starting int
	users    int // calls that have it and will come back to it
}

// isPoolable says whether a sandbox for a spec can be started before its session
// is known, and is then the same.
func isPoolable(spec sandbox.Spec) bool {
	if spec.Workspace.Dir == nil || spec.Workspace.Mode == sandbox.ModeOverlay || spec.Workspace.Layers != "" || spec.Workspace.Unguarded {
		return false
	}
	switch spec.Image.Scheme {
	case images.SchemeHost, images.SchemeRootFS, images.SchemeName:
		return true
	}
	return false
}

// stripSession is the part of a spec that a sandbox depends on.
func stripSession(spec sandbox.Spec) sandbox.Spec {
	spec.Session = ""
	spec.Dir = ""
	spec.Notify = nil
	return spec
}

// specKey names a template: everything in it, with the workspace's device and inode in
// the place of its descriptor.
func specKey(spec sandbox.Spec) (string, error) {
	spec = stripSession(spec)
	dir, err := dirIdentity(spec.Workspace.Dir)
	if err != nil {
		return "", err
	}
	spec.Workspace.Dir = nil
	return fmt.Sprintf("%s %#v", dir, spec), nil
}

// acquireBucket finds or makes the kind of a spec, which was asked for now. The caller
// gives it back with leave.
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

// releaseBucket says that a call is done with a kind.
func (p *Pool) releaseBucket(b *bucket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b.users--
}

// isIdle says that nothing needs a kind's descriptor.
func (b *bucket) isIdle() bool { return len(b.ready)+b.starting+b.users == 0 }

// spareBuckets is how many specs are remembered beyond those that the pool has
// room for: each holds a descriptor.
const spareBuckets = 64

// forgetOldestLocked makes room for one more kind: of those with nothing ready that
// no call has, the one that was used longest ago goes.
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

// closeDir closes its descriptor.
func (b *bucket) closeDir() { _ = b.spec.Workspace.Dir.Close() } // it was only held open

// duplicateDir opens what f is once more, without a path.
func duplicateDir(f *os.File) (*os.File, error) {
	d, err := duplicateFile(f)
	if err != nil {
		return nil, fmt.Errorf("hold workspace: %w", err)
	}
	return d, nil
}
