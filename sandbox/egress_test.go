package sandbox_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

func TestCommandAddr(t *testing.T) {
	for n, want := range map[int]string{0: "127.80.0.0", 1: "127.80.0.1", 256: "127.80.1.0", sandbox.MaxCommandNumber: "127.80.255.255"} {
		addr := sandbox.CommandAddr(n)
		if addr.String() != want || sandbox.CommandNumber(addr) != n || sandbox.CommandNumber(netip.AddrFrom16(addr.As16())) != n {
			t.Errorf("command %d has %v, which is of %d", n, addr, sandbox.CommandNumber(addr))
		}
	}
	for _, other := range []string{"127.0.0.1", "127.81.0.7", "::1", "10.80.0.7"} {
		if n := sandbox.CommandNumber(netip.MustParseAddr(other)); n != 0 {
			t.Errorf("%s is of command %d", other, n)
		}
	}
}

func TestEgressPlan(t *testing.T) {
	var none *sandbox.EgressPlan
	if err := none.Validate([]string{"http_proxy=x"}); err != nil {
		t.Errorf("without a plan: %v", err)
	}
	for _, p := range []sandbox.EgressPlan{{Port: -1}, {Port: 80}, {Port: 65536}} {
		if err := p.Validate(nil); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	p := sandbox.EgressPlan{}
	if err := p.Validate([]string{"A=1", "PROXY=x"}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"http_proxy", "HTTPS_PROXY", "No_Proxy", "all_proxy", "NODE_USE_ENV_PROXY"} {
		err := p.Validate([]string{name + "=secret"})
		if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, v := range p.ProxyVariables(7) {
		if name, _, _ := strings.Cut(v, "="); strings.EqualFold(name, "ALL_PROXY") {
			t.Error("ALL_PROXY is set")
		}
	}
	if !slices.Contains(p.ProxyVariables(7), "https_proxy=http://127.80.0.7:61080") {
		t.Errorf("variables %q", p.ProxyVariables(7))
	}
}
