package lifecycle

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
)

// BindsLowPorts reports whether the guest needs a capability for listeners below
// port 1024, which it drops once they are open. Root commands have it anyway.
func (p *Preparation) BindsLowPorts() bool {
	e := p.Spec.Egress
	return p.LowPorts && p.Spec.User != sandbox.UserRoot && e != nil && (e.Names || len(e.Capture) > 0)
}

// Seccomp returns the seccomp profile for a processor architecture; see
// [harden.SeccompFor].
func (p *Preparation) Seccomp(arch string) (harden.Seccomp, error) {
	s, err := harden.SeccompFor(arch)
	if err != nil || p.Spec.Egress == nil {
		return s, err
	}
	return s.WithSocketDiagnosis()
}

// egressConfig returns the listeners of the guest; nil for none.
func (p *Preparation) egressConfig() *wire.Egress {
	plan := p.Spec.Egress
	if plan == nil {
		return nil
	}
	return &wire.Egress{Port: plan.ProxyPort(), Names: plan.Names, Capture: plan.Capture, LowPorts: p.BindsLowPorts()}
}

// expectedListeners returns what the guest reports of the listeners of a
// configuration, the captured ports last.
func expectedListeners(e *wire.Egress) (own, captured []string) {
	const all = "tcp 0.0.0.0:"
	own = []string{all + strconv.Itoa(e.Port)}
	if e.Names {
		own = append(own, "udp 127.0.0.1:53", "tcp 127.0.0.1:53")
	}
	for _, port := range e.Capture {
		captured = append(captured, all+strconv.Itoa(port))
	}
	return own, captured
}

// verifyEgress returns an error unless the guest has the listeners that were
// requested.
func (o *observation) verifyEgress() error {
	want, got := o.prep.egressConfig(), o.hello.Egress
	if want == nil || got == nil {
		if want != nil || got != nil {
			return fmt.Errorf("%w: the guest's listeners are not those that were requested", sandbox.ErrUnavailable)
		}
		return nil
	}
	own, captured := expectedListeners(want)
	list := slices.Concat(own, captured)
	slices.Sort(list)
	if have := slices.Sorted(slices.Values(got.Listening)); !slices.Equal(have, list) {
		return fmt.Errorf("%w: the guest listens at %q, not at %q", sandbox.ErrUnavailable, have, list)
	}
	return nil
}

// describeEgress returns the listeners, as they were just verified.
func (o *observation) describeEgress() *sandbox.AttestedEgress {
	e := o.prep.egressConfig()
	if e == nil {
		return nil
	}
	own, _ := expectedListeners(e)
	return &sandbox.AttestedEgress{Listening: own, Capture: e.Capture}
}
