package sandbox_test

import (
	"encoding/pem"
	"errors"
	"net/http/httptest"
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
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})
	for _, p := range []sandbox.EgressPlan{
		{Port: -1},
		{Port: 80},
		{Port: 65536},
		{Capture: []int{80}},
		{Names: true, Capture: []int{0}},
		{Names: true, Capture: []int{65536}},
		{Names: true, Capture: []int{53}},
		{Names: true, Capture: []int{sandbox.DefaultEgressPort}},
		{Names: true, Capture: []int{443, 80}},
		{Names: true, Capture: []int{80, 80}},
		{Names: true, Capture: make([]int, sandbox.MaxCapturePorts+1)},
		{Roots: []byte("no certificate")},
		{Roots: key},
		{Roots: slices.Concat(roots(t), key)},
		{Roots: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})},
		{Roots: make([]byte, sandbox.MaxRootsBytes+1)},
		{JavaRoots: true},
		{Env: []string{"https_proxy=x"}},
		{Env: []string{"PATH=x"}},
	} {
		if err := p.Validate(nil); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	full := sandbox.EgressPlan{Names: true, Capture: []int{22, 80, 443}, Roots: roots(t), JavaRoots: true, Env: []string{"GOPROXY={proxy}/go"}}
	if err := full.Validate(nil); err != nil {
		t.Error(err)
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
	if !slices.Contains(p.ProxyVariables(7), "no_proxy=localhost,127.0.0.1,127.0.0.0/8,::1,[::1],0.0.0.0,caisson,127.80.0.7") {
		t.Errorf("variables %q", p.ProxyVariables(7))
	}
	if !slices.Contains(p.ProxyVariables(7), "https_proxy=http://127.80.0.7:61080") {
		t.Errorf("variables %q", p.ProxyVariables(7))
	}
}

func TestNameAddr(t *testing.T) {
	for n, want := range map[int]string{1: "127.96.0.1", 256: "127.96.1.0", 1 << 16: "127.97.0.0", 1<<20 - 1: "127.111.255.255"} {
		addr := sandbox.NameAddr(n)
		if addr.String() != want || sandbox.NameNumber(addr) != n || sandbox.NameNumber(netip.AddrFrom16(addr.As16())) != n {
			t.Errorf("name %d has %v, which is of %d", n, addr, sandbox.NameNumber(addr))
		}
	}
	for _, other := range []string{"127.0.0.1", "127.80.0.7", "127.112.0.1", "::1"} {
		if n := sandbox.NameNumber(netip.MustParseAddr(other)); n != 0 {
			t.Errorf("%s is of name %d", other, n)
		}
	}
}

func TestCommandEnv(t *testing.T) {
	p := sandbox.EgressPlan{Roots: roots(t), JavaRoots: true, Env: []string{"GOPROXY={proxy}/go,{proxy}/direct", "A=plan", "PIP_NO_INDEX="}}
	env := p.CommandEnv(nil, []string{"A=session"}, 258)
	for _, want := range []string{
		"GOPROXY=http://127.80.1.2:61080/go,http://127.80.1.2:61080/direct", "A=session", "PIP_NO_INDEX=",
		"HTTP_PROXY=http://127.80.1.2:61080", "SSL_CERT_FILE=/.caisson/net/bundle.pem", "NODE_EXTRA_CA_CERTS=/.caisson/net/ca.pem",
	} {
		if !slices.Contains(env, want) {
			t.Errorf("no %s in %q", want, env)
		}
	}
	if !slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "JAVA_TOOL_OPTIONS=") }) {
		t.Error("Java has no trust store")
	}
	plain := (&sandbox.EgressPlan{}).CommandEnv(nil, nil, 1)
	if slices.ContainsFunc(plain, func(v string) bool { return strings.Contains(v, sandbox.EgressDir) }) {
		t.Errorf("without roots: %q", plain)
	}
}

// The session's GOPROXY comes first, and the plan's proxy has the other
// modules.
func TestCommandEnvJoinsGoProxies(t *testing.T) {
	p := sandbox.EgressPlan{Env: []string{"GOPROXY={proxy}/go"}}
	for own, want := range map[string]string{
		"file:///mods":     "file:///mods,http://127.80.0.7:61080/go",
		"file:///mods,off": "file:///mods,off",
		"off":              "off",
	} {
		if env := p.CommandEnv(nil, []string{"GOPROXY=" + own}, 7); !slices.Contains(env, "GOPROXY="+want) {
			t.Errorf("%s: %q", own, env)
		}
	}
	if env := (&sandbox.EgressPlan{}).CommandEnv(nil, []string{"GOPROXY=file:///mods"}, 7); !slices.Contains(env, "GOPROXY=file:///mods") {
		t.Errorf("without the preset: %q", env)
	}
}

func roots(t *testing.T) []byte {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}
