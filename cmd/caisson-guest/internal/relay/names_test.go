package relay

import "testing"

// TestTurns checks that a port with many queries delays a query of another port
// by at most one turn, that many such ports leave room for others, and that the
// number of waiting queries is bounded.
func TestTurns(t *testing.T) {
	const most = maxWaiting / portShare
	q := newTurns()
	for i := range 10 * most {
		q.add(1, datagram{message: []byte{1, byte(i)}})
	}
	q.add(2, datagram{message: []byte{2}})
	q.add(3, datagram{message: []byte{3}})
	var got []byte
	for range most + 2 {
		got = append(got, q.next().message[0])
	}
	if string(got[:4]) != "\x01\x02\x03\x01" {
		t.Errorf("the turns are %v", got)
	}
	if q.total != 0 || len(q.waiting) != 0 || len(q.ports) != 0 {
		t.Errorf("%d are left", q.total)
	}
	for i := range 100 * portShare {
		q.add(i%portShare+1, datagram{})
	}
	q.add(portShare+1, datagram{})
	if len(q.waiting[portShare+1]) != 1 {
		t.Errorf("%d queries of %d ports keep out another's", q.total, portShare)
	}
	for q.total > 0 {
		q.next()
	}
	for port := range 2 * maxWaiting {
		q.add(port, datagram{})
	}
	if q.total != maxWaiting {
		t.Errorf("%d wait", q.total)
	}
}
