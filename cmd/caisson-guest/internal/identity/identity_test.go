package identity

import (
	"errors"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

func TestParse(t *testing.T) {
	const status = "Name:\tsh\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n" +
		"Groups:\t30000 \nCapInh:\t0000000000000000\nCapPrm:\t00000000000001e0\nCapEff:\tnonsense\n" +
		"CapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t2\nbroken line\n"
	want := wire.Identity{
		UID: [4]uint32{1, 2, 3, 4}, GID: [4]uint32{5, 6, 7, 8}, Groups: []uint32{30000},
		Permitted: 0x1e0, Effective: math.MaxUint64, Bounding: 0x1ffffffffff,
		NoNewPrivs: true, Seccomp: 2, Filters: 2,
	}
	if diff := cmp.Diff(want, Parse([]byte(status))); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if p := Parse([]byte("Groups:\t1 4294967295 4294967296 2\n")); !slices.Equal(p.Groups, []uint32{1, math.MaxUint32}) {
		t.Errorf("groups are %v", p.Groups)
	}
	if _, err := Read(t.TempDir() + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a process that is gone: %v", err)
	}
	if p := Parse(nil); p.NoNewPrivs || p.Seccomp != 0 {
		t.Errorf("no status at all counts as protected: %+v", p)
	}
}
