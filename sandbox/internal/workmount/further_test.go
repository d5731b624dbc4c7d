package workmount

import (
	"errors"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// TestLayersOnAnEngine checks that a copy-on-write mount that an engine would
// have to make is refused with a hint.
func TestLayersOnAnEngine(t *testing.T) {
	m := furtherMount{Mount: sandbox.Mount{Target: "/cache"}, source: "/state/cache", layers: &overlayLayers{}}
	p := &Mounts{cleanup: &cleanup{further: []furtherMount{m}}}
	err := p.bindFurther(Options{}, identityPlan{})
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "use the gvisor or runc backend, run as root") {
		t.Errorf("%v", err)
	}
}
