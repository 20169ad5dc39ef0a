// SPDX-License-Identifier: Apache-2.0

package stream

// ResponseID gives the id of the OpenAI response object as soon as it was seen,
// "" before that.
func (o *Observer) ResponseID() string { return o.responseID }
