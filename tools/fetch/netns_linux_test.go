package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits"
)

// inNamespace is set in a child process of the test, which runs in its own network
// namespace. There, it can use any address.
const inNamespace = "CAISSON_TEST_FETCH_NAMESPACE"

// Addresses of the namespace; publicAddr represents the internet.
const (
	publicAddr  = "93.184.216.34"
	publicAddr6 = "2606:4700::1111"
	nameServer  = "127.0.0.53"
)

// canaryAddrs are addresses that must not be reached, one for each kind of network.
var canaryAddrs = []string{
	"127.0.0.1", "10.0.0.5", "172.16.0.5", "192.168.0.5", "169.254.169.254", "100.64.0.1", "198.18.0.1", "240.0.0.1", "168.63.129.16",
	"::1", "fc00::5", "64:ff9b::a00:5", "2002:a00:5::1",
}

// TestPublicNetwork runs acceptance cases 59, 60, 63 and 67 in a network namespace,
// with addresses that are public there.
func TestPublicNetwork(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		t.Run("literals", namespaceLiterals)
		t.Run("rebinding", namespaceRebinding)
		t.Run("mixed answers", namespaceMixedAnswers)
		t.Run("allowed by name", namespaceAllowedByName)
		t.Run("proxy", namespaceProxy)
		return
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestPublicNetwork$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), inNamespace+"="+dir, "HTTP_PROXY=http://"+publicAddr+":3128", "http_proxy=http://"+publicAddr+":3128")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		skipOrFail(t, "a network namespace: %v", err)
	}
	err := cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == noNamespace {
		skipOrFail(t, "addresses in a network namespace: %s", out.String())
	}
	if err != nil || strings.Count(out.String(), "--- PASS: TestPublicNetwork/") != 5 {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// skipOrFail skips the test, or fails it if REQUIRE_BACKENDS is set.
func skipOrFail(t *testing.T, format string, args ...any) {
	t.Helper()
	if strings.TrimSpace(os.Getenv("REQUIRE_BACKENDS")) != "" {
		t.Fatalf("REQUIRE_BACKENDS is set, and there is no "+format, args...)
	}
	t.Skipf("needs "+format, args...)
}

// noNamespace is the exit status of a child that can't set up its namespace.
const noNamespace = 77

// runInNamespace sets up the addresses and the name server of this process, and
// runs the tests.
func runInNamespace(m *testing.M) int {
	if err := prepareNamespace(os.Getenv(inNamespace)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return noNamespace
	}
	return m.Run()
}

func prepareNamespace(dir string) error {
	// Routes, because addresses of interfaces are this machine's own and refused. IPv6
	// addresses of no interface can only be listened on with this setting.
	if err := os.WriteFile("/proc/sys/net/ipv6/ip_nonlocal_bind", []byte("1"), 0o600); err != nil {
		return err
	}
	commands := [][]string{{"link", "set", "lo", "up"}}
	for _, a := range append([]string{publicAddr, publicAddr6}, canaryAddrs...) {
		switch {
		case a == "127.0.0.1" || a == "::1":
		case strings.Contains(a, ":"):
			commands = append(commands, []string{"-6", "route", "add", "local", a + "/128", "dev", "lo"})
		default:
			commands = append(commands, []string{"route", "add", "local", a + "/32", "dev", "lo"})
		}
	}
	for _, args := range commands {
		if out, err := exec.CommandContext(context.Background(), "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	for _, a := range append([]string{publicAddr6}, canaryAddrs...) {
		if err := awaitAddr(a); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for name, text := range map[string]string{
		"resolv.conf": "nameserver " + nameServer + "\nsearch evil.test\noptions timeout:1 attempts:2\n",
		"hosts":       "127.0.0.1 localhost hosts-file.test\n10.0.0.5 hosts-internal.test\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		target, err := filepath.EvalSymlinks("/etc/" + name)
		if err != nil {
			return fmt.Errorf("there is no /etc/%s: %w", name, err)
		}
		if err := unix.Mount(file, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
	}
	return nil
}

// awaitAddr waits until an address can be connected to. On a busy machine, the
// kernel adds the route of an IPv6 address later than the address.
func awaitAddr(addr string) error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		conn, err := (&net.Dialer{Timeout: 200 * time.Millisecond}).DialContext(ctx, "tcp", l.Addr().String())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s can't be connected to: %w", addr, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// answer is the answer of the name server to one query for a name.
type answer struct {
	addrs []string
	cname string
	rcode dnsmessage.RCode
}

// dnsServer is a name server whose answers may change with every query. Queries
// for AAAA and A are counted apart, so that both of one lookup get the same answer.
type dnsServer struct {
	mu      sync.Mutex
	answers map[string][]answer // the last one stays
	asked   map[string]int
}

// startDNS starts a name server on UDP and TCP. Answers of 500 addresses need TCP.
func startDNS(t *testing.T, answers map[string][]answer) *dnsServer {
	t.Helper()
	n := &dnsServer{answers: answers, asked: map[string]int{}}
	udp, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", nameServer+":53")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := new(net.ListenConfig).Listen(t.Context(), "tcp", nameServer+":53")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			size, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			if reply := n.answerQuery(buf[:size], 512); reply != nil {
				_, _ = udp.WriteTo(reply, from)
			}
		}
	})
	wg.Go(func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 4096)
			if size, err := conn.Read(buf); err == nil && size > 2 {
				reply := n.answerQuery(buf[2:size], 65535)
				_, _ = conn.Write(append([]byte{byte(len(reply) >> 8), byte(len(reply))}, reply...))
			}
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = udp.Close()
		_ = tcp.Close()
		wg.Wait()
	})
	return n
}

func (n *dnsServer) answerQuery(query []byte, maxSize int) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	name := strings.ToLower(q.Name.String())
	n.mu.Lock()
	key := name + q.Type.String()
	list := n.answers[strings.TrimSuffix(name, ".")]
	at := min(n.asked[key], len(list)-1)
	if maxSize == 512 { // a query over TCP is the same one again
		n.asked[key]++
	}
	n.mu.Unlock()
	m.Response = true
	m.Authoritative = true
	m.RecursionAvailable = true
	m.Additionals = nil
	if at < 0 {
		m.RCode = dnsmessage.RCodeNameError
	} else {
		m.RCode = list[at].rcode
		m.Answers = answerRecords(q, list[at])
	}
	out, err := m.Pack()
	if err == nil && len(out) > maxSize {
		m.Truncated, m.Answers = true, nil
		out, err = m.Pack()
	}
	if err != nil {
		return nil
	}
	return out
}

// answerRecords returns the records of an answer, with a TTL of zero.
func answerRecords(q dnsmessage.Question, a answer) []dnsmessage.Resource {
	var out []dnsmessage.Resource
	header := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET}
	if a.cname != "" {
		header.Type = dnsmessage.TypeCNAME
		out = append(out, dnsmessage.Resource{Header: header, Body: &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(a.cname)}})
		header.Name = dnsmessage.MustNewName(a.cname)
	}
	header.Type = q.Type
	for _, s := range a.addrs {
		addr := netip.MustParseAddr(s)
		switch {
		case q.Type == dnsmessage.TypeA && addr.Is4():
			out = append(out, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}})
		case q.Type == dnsmessage.TypeAAAA && addr.Is6():
			out = append(out, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
	return out
}

// network is the set of servers of the namespace: a public one, and canaries at
// other addresses, all on port 80.
type network struct {
	t        *testing.T
	public   atomic.Int64
	canaries []*canary
	names    *dnsServer
}

func newNetwork(t *testing.T, answers map[string][]answer) *network {
	t.Helper()
	w := &network{t: t, names: startDNS(t, answers)}
	for _, addr := range []string{publicAddr, publicAddr6} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(addr, "80"))
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.public.Add(1)
			if to := r.URL.Query().Get("to"); to != "" {
				rw.Header().Set("Location", to)
				rw.WriteHeader(http.StatusFound)
				return
			}
			serveHello(rw, r)
		})}
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Serve(l) })
		t.Cleanup(func() {
			_ = s.Close()
			wg.Wait()
		})
	}
	for _, addr := range canaryAddrs {
		w.canaries = append(w.canaries, newCanary(t, net.JoinHostPort(addr, "80")))
	}
	return w
}

// takeHits returns the number of connections to all canaries, and resets it.
func (w *network) takeHits() int64 {
	var n int64
	for _, c := range w.canaries {
		n += c.hits.Swap(0)
	}
	return n
}

// requireReachable is the positive control: it fails the test if a client without
// a policy doesn't reach a canary by a URL.
func (w *network) requireReachable(u string) {
	w.t.Helper()
	err := fetchNaively(w.t, nil, u)
	if w.takeHits() == 0 {
		w.t.Errorf("control: a naive client doesn't reach a canary by %s (%v), so nothing is shown", u, err)
	}
}

// requireUntouched fails the test if there were connections to a canary.
func (w *network) requireUntouched(what string) {
	w.t.Helper()
	if n := w.takeHits(); n != 0 {
		w.t.Errorf("%s: %d connections to canaries", what, n)
	}
}

// newOpenFixture returns a client that may fetch the given URLs.
func newOpenFixture(t *testing.T, urls ...string) *fixture {
	t.Helper()
	return newFixture(t, openOptions(t), urls...)
}

// openOptions returns options whose budget and breakers refuse nothing.
func openOptions(t *testing.T) Options {
	t.Helper()
	egress, err := limits.NewEgress(limits.EgressBudget{Bytes: 1 << 30, Hosts: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := limits.NewBreakers(limits.BreakerOptions{Name: limits.BreakerFetchHost, Failures: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return Options{Egress: egress, Hosts: hosts}
}

// namespaceLiterals is acceptance case 59: addresses that are not public are
// refused, even if they are on the allowlist and a server listens there.
func namespaceLiterals(t *testing.T) {
	w := newNetwork(t, nil)
	for _, addr := range canaryAddrs {
		u := "http://" + netip.AddrPortFrom(netip.MustParseAddr(addr), 80).String() + "/"
		w.requireReachable(u)
		f := newOpenFixture(t, u)
		if d := f.requireRefused(u, "address"); d.Addr != addr {
			t.Errorf("%s: recorded %+v", u, d)
		}
	}
	for _, spelled := range []string{"http://0.0.0.0/", "http://[::]/", "http://[::ffff:10.0.0.5]/", "http://127.1/", "http://2130706433/", "http://0x7f000001/", "http://017700000001/"} {
		f := newOpenFixture(t, "http://"+publicAddr+"/")
		if _, err := f.get(spelled); err == nil {
			t.Errorf("%s was fetched", spelled)
		}
	}
	w.requireReachable("http://0.0.0.0/")
	w.requireReachable("http://[::ffff:10.0.0.5]/")
	w.requireUntouched("literals")
	for _, u := range []string{"http://" + publicAddr + "/", "http://[" + publicAddr6 + "]/"} {
		if res, err := newOpenFixture(t, u).get(u); err != nil || string(res.Body) != "hello" {
			t.Errorf("a public address: %v", err)
		}
	}
	for _, to := range []string{"http://169.254.169.254/latest/meta-data/", "http://127.0.0.1/", "http://[::1]/"} {
		u := "http://" + publicAddr + "/?to=" + to
		w.requireReachable(u)
		newOpenFixture(t, "http://"+publicAddr+"/", to).requireRefused(u, "address")
		w.requireUntouched("redirect to " + to)
	}
}

// namespaceRebinding is acceptance case 60: a name that is public when it is
// checked and internal when it is dialled.
func namespaceRebinding(t *testing.T) {
	public, inner := answer{addrs: []string{publicAddr}}, answer{addrs: []string{"127.0.0.1"}}
	flip := []answer{}
	for range 100 {
		flip = append(flip, public, inner)
	}
	w := newNetwork(t, map[string][]answer{
		"second.test": {public, inner}, "flip.test": flip, "control.test": {public, inner}, "hop.test": {public, inner}, "meta.test": {public, {addrs: []string{"169.254.169.254"}}},
	})
	// The naive way: resolve, look, and then dial by name.
	addrs, err := (&net.Resolver{PreferGo: true}).LookupNetIP(t.Context(), "ip4", "control.test.")
	if err != nil || addrs[0].Unmap().String() != publicAddr {
		t.Fatalf("control: %v, %v", addrs, err)
	}
	w.requireReachable("http://control.test./")

	for _, name := range []string{"second.test", "meta.test"} {
		f := newOpenFixture(t, "http://"+name+"/")
		if res, err := f.get("http://" + name + "/"); err != nil || string(res.Body) != "hello" {
			t.Errorf("%s, the first time: %v", name, err)
		}
		f.requireRefused("http://"+name+"/", "address")
	}
	hop := newOpenFixture(t, "http://hop.test/")
	if d := hop.requireRefused("http://hop.test/?to=/again", "address"); !d.Redirect || d.Addr != "127.0.0.1" {
		t.Errorf("a redirect to itself, which is elsewhere by then: recorded %+v", d)
	}
	f := newOpenFixture(t, "http://flip.test/")
	fetched := 0
	for range 100 {
		if _, err := f.get("http://flip.test/"); err == nil {
			fetched++
		}
	}
	if fetched != 50 {
		t.Errorf("%d of 100 fetches of a name that is public every second time succeeded", fetched)
	}
	w.requireUntouched("rebinding")
}

// namespaceMixedAnswers is acceptance case 63: a name is refused if any of its
// answers is internal.
func namespaceMixedAnswers(t *testing.T) {
	many, hidden := []string{}, []string{}
	for i := range 500 {
		many = append(many, fmt.Sprintf("93.184.%d.%d", 100+i/250, i%250))
		hidden = append(hidden, many[i])
	}
	many[0], hidden[499] = publicAddr, "10.0.0.5"
	w := newNetwork(t, map[string][]answer{
		"mixed.test":              {{addrs: []string{publicAddr, "127.0.0.1"}}},
		"inner-first.test":        {{addrs: []string{"127.0.0.1", publicAddr}}},
		"six.test":                {{addrs: []string{publicAddr, "::1"}}},
		"mapped.test":             {{addrs: []string{"::ffff:10.0.0.5"}}},
		"nat64.test":              {{addrs: []string{"64:ff9b::a00:5"}}},
		"sixtofour.test":          {{addrs: []string{"2002:a00:5::1"}}},
		"cname.test":              {{cname: "localhost.", addrs: []string{"127.0.0.1"}}},
		"internal.test":           {{addrs: []string{"10.0.0.5"}}},
		"sub.internal.test":       {{addrs: []string{"10.0.0.5"}}},
		"hidden.test":             {{addrs: hidden}},
		"many.test":               {{addrs: many}},
		"none.test":               {{}},
		"late.test":               {{rcode: dnsmessage.RCodeNameError}, {addrs: []string{publicAddr}}},
		"fails.test":              {{rcode: dnsmessage.RCodeServerFailure}},
		"good.test":               {{addrs: []string{publicAddr, publicAddr6}}},
		"searched.test.evil.test": {{addrs: []string{publicAddr}}},
		"wiki.evil.test":          {{addrs: []string{"10.0.0.5"}}},
	})
	for _, name := range []string{
		"mixed.test", "inner-first.test", "six.test", "mapped.test", "nat64.test", "sixtofour.test", "cname.test", "internal.test",
		"sub.internal.test", "hidden.test", "localhost", "localhost.", "x.localhost", "hosts-file.test", "hosts-internal.test", "wiki",
	} {
		u := "http://" + name + "/"
		switch name {
		case "mixed.test", "hidden.test", "six.test", "localhost.", "x.localhost", "wiki": // which of the answers a naive client tries is up to it
		default:
			w.requireReachable(u)
		}
		f := newOpenFixture(t, u)
		_, err := f.get(u)
		if got := reasonOf(err); got != "address" && !(name == "x.localhost" && got == "resolve") {
			t.Errorf("%s: %v, want a refusal of its address", name, err)
		}
		w.requireUntouched(name)
	}
	for name, want := range map[string]string{"none.test": "resolve", "late.test": "resolve", "fails.test": "resolve", "unknown.test": "resolve", "searched.test": "resolve", "good.test": "", "many.test": ""} {
		u := "http://" + name + "/"
		if _, err := newOpenFixture(t, u).get(u); reasonOf(err) != want {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if res, err := newOpenFixture(t, "http://late.test/").get("http://late.test/"); err != nil || string(res.Body) != "hello" {
		t.Errorf("name that exists at last: %v", err)
	}
	w.requireUntouched("answers")
}

// namespaceAllowedByName checks that an operator can permit one host in one
// private network.
func namespaceAllowedByName(t *testing.T) {
	w := newNetwork(t, map[string][]answer{
		"wiki.test":  {{addrs: []string{"10.0.0.5"}}, {addrs: []string{"169.254.169.254"}}},
		"other.test": {{addrs: []string{"10.0.0.5"}}},
	})
	o := openOptions(t)
	o.Private = map[string][]netip.Prefix{"wiki.test": {netip.MustParsePrefix("10.0.0.0/24")}}
	f := newFixture(t, o, "http://wiki.test/", "http://other.test/", "http://10.0.0.5/")
	if res, err := f.get("http://wiki.test/"); err != nil || string(res.Body) != "secret" {
		t.Errorf("the host that is allowed: %v", err)
	}
	if w.takeHits() != 1 {
		t.Error("the canary does not count")
	}
	f.requireRefused("http://wiki.test/", "address") // it has moved
	f.requireRefused("http://other.test/", "address")
	f.requireRefused("http://10.0.0.5/", "address")
	w.requireUntouched("others")
}

// namespaceProxy is acceptance case 67 with an address that is not
// loopback, for which net/http's own default asks the environment.
func namespaceProxy(t *testing.T) {
	w := newNetwork(t, map[string][]answer{"docs.test": {{addrs: []string{publicAddr}}}})
	proxy := newCanary(t, publicAddr+":3128")
	err := fetchNaively(t, &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}}, "http://docs.test/")
	if proxy.hits.Swap(0) == 0 {
		t.Errorf("control: the environment's proxy is not used by a client that asks for it: %v", err)
	}
	if res, err := newOpenFixture(t, "http://docs.test/").get("http://docs.test/"); err != nil || string(res.Body) != "hello" {
		t.Errorf("%v", err)
	}
	proxy.requireUntouched(t)
	w.requireUntouched("proxy")
}
