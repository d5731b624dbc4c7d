// Package ui shows a session to a user: a line for each event and, on a terminal that
// can move its cursor, a region below with the current activity. It also asks for
// approvals.
//
// Everything is written to one writer, the program's standard error. The answer is
// written elsewhere. Text from models, tools and files is made safe.
package ui
