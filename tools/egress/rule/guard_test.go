package rule

import (
	"errors"
	"net/netip"
	"testing"
)

// internalAddrs are addresses that must not be dialled by default: one of each
// kind of acceptance case 59, and the edges of the blocks.
var internalAddrs = []string{
	"0.0.0.0", "0.1.2.3", "10.0.0.5", "10.255.255.255", "100.64.0.1", "100.100.100.200", "100.127.255.255", "127.0.0.1", "127.255.0.1",
	"168.63.129.16", "169.254.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1",
	"192.168.0.1", "192.168.255.255", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255",
	"240.0.0.1", "255.255.255.255",
	"::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.5", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1",
	"2002:7f00:1::1", "2002:a00:5::", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "febf::1", "fec0::1", "ff02::1",
}

func TestInternalAddresses(t *testing.T) {
	g, err := NewGuard(map[string][]netip.Prefix{"Wiki.lan.": {netip.MustParsePrefix("10.1.2.0/24"), netip.MustParsePrefix("fd00::/64")}})
	if err != nil {
		t.Fatal(err)
	}
	dial := func(host string, port uint16, addr string) error {
		c, err := (&Dialer{Guard: g}).newCheck(host, port)
		if err != nil {
			t.Fatal(err)
		}
		return c.control("tcp", netip.AddrPortFrom(netip.MustParseAddr(addr), 80).String(), nil)
	}
	for _, s := range internalAddrs {
		for _, host := range []string{"docs.example.com", "wiki.lan"} {
			if err := dial(host, 80, s); err == nil {
				t.Errorf("%s may be dialled for %s", s, host)
			}
		}
	}
	for _, s := range []string{"93.184.216.34", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.255.255", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"} {
		if err := dial("docs.example.com", 80, s); err != nil {
			t.Errorf("%s may not be dialled: %v", s, err)
		}
	}
	for _, s := range []string{"10.1.2.3", "fd00::1"} {
		if err := dial("wiki.lan", 80, s); err != nil {
			t.Errorf("%s may not be dialled for the host that it is allowed for: %v", s, err)
		}
		if err := dial("other.lan", 80, s); err == nil {
			t.Errorf("%s may be dialled for another host", s)
		}
	}
	if err := dial("docs.example.com", 22, "93.184.216.34"); err == nil {
		t.Error("another port may be dialled")
	}
}

// TestNamedOfDialer checks that an address that a dialer names is allowed, alone, and which
// refusals are because of a private network.
func TestNamedOfDialer(t *testing.T) {
	g, err := NewGuard(nil)
	if err != nil {
		t.Fatal(err)
	}
	d := &Dialer{Guard: g, Named: []netip.Addr{netip.MustParseAddr("10.1.2.3")}}
	for addr, isNetwork := range map[string]bool{"10.1.2.4": true, "fd00::1": true, "127.0.0.1": false, "169.254.169.254": false, "fd00:ec2::254": false, "100.100.100.200": false, "192.0.2.1": false} {
		refused, ok := errors.AsType[*AddressError](d.CheckAddr("a.test", 80, netip.MustParseAddr(addr)))
		if !ok || refused.IsNetwork() != isNetwork {
			t.Errorf("%s: %v, in a private network %v", addr, refused, !isNetwork)
		}
	}
	if err := d.CheckAddr("a.test", 80, d.Named[0]); err != nil {
		t.Error(err)
	}
	own := &AddressError{Addr: netip.MustParseAddr("10.1.2.4"), Err: errOwnAddr}
	if own.IsNetwork() {
		t.Error("an address of this machine is taken for one of a private network")
	}
	d.Deny = mustParse(t, "tcp://10.0.0.0/8:*")
	if refused, ok := errors.AsType[*AddressError](d.CheckAddr("a.test", 80, d.Named[0])); !ok || refused.IsNetwork() {
		t.Errorf("an address that a rule denies: %v", refused)
	}
}

// TestIsOfMachine checks the addresses that no name should have, including this
// machine's interfaces.
func TestIsOfMachine(t *testing.T) {
	own, err := ownAddrs()
	if err != nil || len(own) == 0 {
		t.Fatalf("control: %v, %v", own, err)
	}
	for _, s := range []string{"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.1.1", "fe80::1", "169.254.169.254", "100.100.100.200"} {
		own = append(own, netip.MustParseAddr(s))
	}
	for _, addr := range own {
		if !IsOfMachine(addr) {
			t.Errorf("%s may be allowed for a name", addr)
		}
	}
	for _, s := range []string{"10.254.253.252", "fd00::1:2:3", "100.64.9.9"} {
		if IsOfMachine(netip.MustParseAddr(s)) {
			t.Errorf("%s is taken for this machine's", s)
		}
	}
}

// TestNamedAddresses checks that addresses of this machine and of metadata services
// are only dialled if they are named themselves.
func TestNamedAddresses(t *testing.T) {
	everything := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	g, err := NewGuard(map[string][]netip.Prefix{"wide.lan": everything, "own.lan": {netip.MustParsePrefix("127.0.0.1/32")}, "loop.lan": {netip.MustParsePrefix("127.0.0.0/8")}, "meta.lan": {netip.MustParsePrefix("169.254.169.254/32")}})
	if err != nil {
		t.Fatal(err)
	}
	allows := func(host, addr string, publicOnly bool) bool {
		c, err := (&Dialer{Guard: g, PublicOnly: publicOnly}).newCheck(host, 80)
		if err != nil {
			t.Fatal(err)
		}
		return c.checkAddr(netip.MustParseAddr(addr)) == nil
	}
	if !allows("wide.lan", "10.9.9.9", false) || !allows("wide.lan", "fe80::1", false) {
		t.Error("control: a network that is named is refused")
	}
	for _, addr := range []string{"127.0.0.1", "::1", "169.254.169.254", "fd00:ec2::254", "168.63.129.16", "100.100.100.200"} {
		if allows("wide.lan", addr, false) {
			t.Errorf("%s is dialled because a network around it is named", addr)
		}
	}
	for host, addr := range map[string]string{"own.lan": "127.0.0.1", "loop.lan": "127.0.0.1", "meta.lan": "169.254.169.254"} {
		if !allows(host, addr, false) {
			t.Errorf("%s is refused to %s although it is named", addr, host)
		}
		if allows(host, addr, true) {
			t.Errorf("%s is dialled for %s by a rule that only allows public addresses", addr, host)
		}
	}
}
