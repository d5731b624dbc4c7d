//go:build linux

package relay

import "testing"

// TestTurns checks that a port with many queries delays those of others by one at most,
// and that what waits is bounded.
func TestTurns(t *testing.T) {
	q := newTurns()
	for i := range 10 * maxPortQueries {
		q.add(1, datagram{message: []byte{1, byte(i)}})
	}
	q.add(2, datagram{message: []byte{2}})
	q.add(3, datagram{message: []byte{3}})
	var got []byte
	for range maxPortQueries + 2 {
		got = append(got, q.next().message[0])
	}
	if string(got[:4]) != "\x01\x02\x03\x01" {
		t.Errorf("the turns are %v", got)
	}
	if q.total != 0 || len(q.waiting) != 0 || len(q.ports) != 0 {
		t.Errorf("%d are left", q.total)
	}
	for port := range 2 * maxWaiting {
		q.add(port, datagram{})
	}
	if q.total != maxWaiting {
		t.Errorf("%d wait", q.total)
	}
}
