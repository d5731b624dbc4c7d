package wire

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTargets(t *testing.T) {
	for _, want := range []Target{
		{IP: []byte{127, 0, 0, 1}, Port: 4711}, {IP: make([]byte, 16), Port: 65535}, {Abstract: "caisson:doctor"},
	} {
		got, err := ParseTarget(want.String())
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", want, err, diff)
		}
	}
	for _, bad := range []string{"", "abstract:", "tcp:7f000001", "tcp:7f00:1", "tcp:7f000001:65536", "tcp:7f000001:-1", "tcp:7f000001:1:2", "udp:7f000001:1"} {
		if got, err := ParseTarget(bad); err == nil {
			t.Errorf("%q is %+v", bad, got)
		}
	}
}
