package harden

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLimitProcessors(t *testing.T) {
	const info = "processor\t: 0\nmodel\t: x\n\nprocessor\t: 1\nmodel\t: x\n\nprocessor\t: 2\nmodel\t: x\n\n"
	for _, tt := range []struct {
		milli        int64
		online, info string
		want         Processors
	}{
		{1000, "0-2\n", info, Processors{"0\n", "processor\t: 0\nmodel\t: x\n\n"}},
		{1500, "0-2\n", info, Processors{"0-1\n", "processor\t: 0\nmodel\t: x\n\nprocessor\t: 1\nmodel\t: x\n\n"}},
		{10, "0,2-3\n", "", Processors{Online: "0\n"}},
		{3000, "0-2\n", info, Processors{}},
		{2500, "0-2\n", info, Processors{}},
		{1000, "0\n", info, Processors{}},
		{1000, "", info, Processors{}},
		{1000, "3-1\n", info, Processors{}},
		{0, "0-2\n", info, Processors{}},
		{1001, "0-2\n", "", Processors{Online: "0-1\n"}},
		{2000, "4-5\n", info, Processors{}},
		{1000, "4-5\n", "processor\t: 4", Processors{Online: "0\n"}},
		{1000, "0-x,1-4\n", info, Processors{}},
		{1000, "x-3,1-4\n", info, Processors{}},
		{1000, "3-1,1-4\n", info, Processors{}},
	} {
		if diff := cmp.Diff(tt.want, limitProcessors(tt.milli, tt.online, tt.info)); diff != "" {
			t.Errorf("%d of %q (-want +got):\n%s", tt.milli, tt.online, diff)
		}
	}
}
