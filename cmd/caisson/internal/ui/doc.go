// Package ui shows a session to a person: a line an event, and, on a
// terminal that can move its cursor, a region below them that shows what is
// going on now. It also asks for approvals.
//
// Everything goes to one writer, standard error in the program; the answer is
// not its business. Text that comes from a model, a tool or a file is made
// safe before it is written.
package ui
