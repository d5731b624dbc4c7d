package serve

import "testing"

func TestGIDs(t *testing.T) {
	g := newGIDs(100, 3)
	take := func() uint32 {
		gid, ok := g.acquire()
		if !ok {
			t.Fatal("none is left")
		}
		return gid
	}
	a, b, c := take(), take(), take()
	if a != 100 || b != 101 || c != 102 {
		t.Errorf("taken are %d, %d, %d", a, b, c)
	}
	if gid, ok := g.acquire(); ok || gid != 0 {
		t.Errorf("a fourth of three is %d", gid)
	}
	g.release(a)
	g.release(c)
	if gid := take(); gid != a {
		t.Errorf("after a round comes %d", gid)
	}
	g.release(a)
	if gid := take(); gid != c {
		t.Errorf("%d is used again before %d", gid, c)
	}
}
