package pool

import (
	"fmt"
	"os"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// kind is all sandboxes for one spec. It is guarded by the pool.
type kind struct {
	spec     sandbox.Spec // without session and folder; with a descriptor of its own
	used     time.Time    // when it was asked for last
	ready    []*ready     // the oldest first
	starting int
	users    int // calls that have it and will come back to it
}

// poolable says whether a sandbox for a spec can be started before its session
// is known, and is then the same.
func poolable(spec sandbox.Spec) bool {
	if spec.Workspace.Dir == nil || spec.Workspace.Mode == sandbox.ModeOverlay || spec.Workspace.Layers != "" || spec.Workspace.Unguarded {
		return false
	}
	switch spec.Image.Scheme {
	case images.SchemeHost, images.SchemeRootFS, images.SchemeName:
		return true
	}
	return false
}

// template is the part of a spec that a sandbox depends on.
func template(spec sandbox.Spec) sandbox.Spec {
	spec.Session, spec.Dir, spec.Notify = "", "", nil
	return spec
}

// key names a template: everything in it, with the workspace's device and inode in
// the place of its descriptor.
func key(spec sandbox.Spec) (string, error) {
	spec = template(spec)
	folder, err := identityOf(spec.Workspace.Dir)
	if err != nil {
		return "", err
	}
	spec.Workspace.Dir = nil
	return fmt.Sprintf("%s %#v", folder, spec), nil
}

// kindOf finds or makes the kind of a spec, which was asked for now. The caller
// gives it back with leave.
func (p *Pool) kindOf(spec sandbox.Spec) (*kind, error) {
	name, err := key(spec)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	k, ok := p.kinds[name]
	if !ok {
		k = &kind{spec: template(spec)}
		if k.spec.Workspace.Dir, err = again(spec.Workspace.Dir); err != nil {
			return nil, err
		}
		p.forgetLocked()
		p.kinds[name] = k
	}
	k.used = time.Now()
	k.users++
	return k, nil
}

// leave says that a call is done with a kind.
func (p *Pool) leave(k *kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k.users--
}

// idle says that nothing needs a kind's descriptor.
func (k *kind) idle() bool { return len(k.ready)+k.starting+k.users == 0 }

// spareKinds is how many specs are remembered beyond those that the pool has
// room for: each holds a descriptor.
const spareKinds = 64

// forgetLocked makes room for one more kind: of those with nothing ready that
// no call has, the one that was used longest ago goes.
func (p *Pool) forgetLocked() {
	if len(p.kinds) < p.o.Size+spareKinds {
		return
	}
	oldest := ""
	for name, k := range p.kinds {
		if k.idle() && (oldest == "" || k.used.Before(p.kinds[oldest].used)) {
			oldest = name
		}
	}
	if k, ok := p.kinds[oldest]; ok {
		k.close()
		delete(p.kinds, oldest)
	}
}

// close closes its descriptor.
func (k *kind) close() { k.spec.Workspace.Dir.Close() } //nolint:errcheck // only held

// again opens what f is once more, without a path.
func again(f *os.File) (*os.File, error) {
	d, err := duplicate(f)
	if err != nil {
		return nil, fmt.Errorf("hold workspace: %w", err)
	}
	return d, nil
}
