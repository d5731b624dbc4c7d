package workmount

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// LostOwners is in Mounts.Lost if the guest mounts the workspace's overlay for an
// ordinary user: gVisor changes a copy of the file, whose owner can't be set.
const LostOwners = "files and directories of other users and groups in the workspace become this user's once commands change them"

// planGuestOverlay leaves the workspace's overlay to the guest, which mounts it
// in the sandbox's own kernel, and the guards in it.
func (p *Mounts) planGuestOverlay(o Options, decided identityPlan, list []guard) error {
	b, err := p.layeredBind(p.Target, furtherMount{Mount: sandbox.Mount{Dir: p.cleanup.workspace}, source: p.Path, layers: p.cleanup.layers})
	if err != nil {
		return err
	}
	p.Binds = []Bind{b}
	if err := p.bindUnstaged(o, decided, list); err != nil {
		return err
	}
	if decided.oneOwner {
		p.Lost = append(p.Lost, LostOwners)
	}
	for i := range p.Binds[1:] {
		if b := &p.Binds[1+i]; p.IsInside(*b) {
			b.Place = p.nextPlace()
		}
	}
	return nil
}

// addGuestOverlay leaves the overlay of a further mount to the guest. Nothing
// can be mounted in it, because the runtime would do that before the guest.
func (p *Mounts) addGuestOverlay(o Options, m furtherMount) error {
	for _, other := range o.Further {
		if strings.HasPrefix(other.Target, m.Target+"/") {
			return &sandbox.IncapableError{
				Request: "mount at " + other.Target, Reason: "gVisor without namespaces mounts nothing in the overlay at " + m.Target,
				Hint: "mount it elsewhere, mount " + m.Target + " read-only, or run where namespaces can be made",
			}
		}
	}
	b, err := p.layeredBind(m.Target, m)
	if err != nil {
		return err
	}
	p.Further = append(p.Further, b)
	return nil
}

// layeredBind returns the bind at target of an overlay that the guest mounts.
func (p *Mounts) layeredBind(target string, m furtherMount) (Bind, error) {
	upper, err := openBelow(m.layers.dir, upperName, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return Bind{}, err
	}
	defer closeAll(upper)
	out := Bind{Target: target, Dir: true}
	for _, dir := range slices.Concat([]*os.File{upper}, m.layers.frozen, []*os.File{m.Dir}) {
		source, err := resolvedPath(dir)
		if err != nil {
			return Bind{}, err
		}
		b, err := p.cleanup.newBind(dir, source, p.nextPlace(), dir != upper)
		if err != nil {
			return Bind{}, err
		}
		out.Layers = append(out.Layers, b)
	}
	return out, nil
}

// nextPlace returns a mount point for something that the guest mounts elsewhere.
func (p *Mounts) nextPlace() string {
	p.cleanup.places++
	return path.Join(wire.LayersDir, strconv.Itoa(p.cleanup.places))
}
