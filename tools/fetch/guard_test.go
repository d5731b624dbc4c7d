package fetch

import (
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
	c := &Client{opts: Options{Private: map[string][]netip.Prefix{"wiki.lan": {netip.MustParsePrefix("10.1.2.0/24"), netip.MustParsePrefix("fd00::/64")}}}}
	for _, s := range internalAddrs {
		for _, host := range []string{"docs.example.com", "wiki.lan"} {
			if err := c.newGuardian(origin{"http", host, 80}).SafeAddr(netip.MustParseAddr(s)); err == nil {
				t.Errorf("%s may be dialled for %s", s, host)
			}
		}
	}
	for _, s := range []string{"93.184.216.34", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.255.255", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"} {
		if err := c.newGuardian(origin{"http", "docs.example.com", 80}).SafeAddr(netip.MustParseAddr(s)); err != nil {
			t.Errorf("%s may not be dialled: %v", s, err)
		}
	}
	for _, s := range []string{"10.1.2.3", "fd00::1"} {
		addr := netip.MustParseAddr(s)
		if err := c.newGuardian(origin{"http", "wiki.lan", 80}).SafeAddr(addr); err != nil {
			t.Errorf("%s may not be dialled for the host that it is allowed for: %v", s, err)
		}
		if err := c.newGuardian(origin{"http", "other.lan", 80}).SafeAddr(addr); err == nil {
			t.Errorf("%s may be dialled for another host", s)
		}
	}
	if err := c.newGuardian(origin{"http", "docs.example.com", 80}).Safe("tcp4", "93.184.216.34:22", nil); err == nil {
		t.Error("another port may be dialled")
	}
}
